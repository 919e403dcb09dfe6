// Stands in ir/, where the partitioner reads cluster.yaml with it.
#pragma once

#include "ir/yaml_fields.h"

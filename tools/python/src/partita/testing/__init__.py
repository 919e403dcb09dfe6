"""Tools that judge the package on models of others."""

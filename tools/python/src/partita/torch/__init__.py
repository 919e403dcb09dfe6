"""What needs torch: exporting modules, and the way back into them."""

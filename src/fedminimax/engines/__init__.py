"""The engines that carry rounds out."""

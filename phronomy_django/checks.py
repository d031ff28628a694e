"""System checks; ids phronomy.E0xx and phronomy.W0xx."""

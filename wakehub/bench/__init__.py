"""What the product costs and how prompt it is, measured on the user's own machine beside floors and peers."""

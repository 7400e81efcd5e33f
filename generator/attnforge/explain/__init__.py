"""The formula of a variant, its tiles and pictures of them: as text, images and pages."""

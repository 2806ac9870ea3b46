"""The package; its public names are loaded lazily."""

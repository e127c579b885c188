"""Ways to evaluate a network: `registry` lists them, `reference` defines what they must compute."""

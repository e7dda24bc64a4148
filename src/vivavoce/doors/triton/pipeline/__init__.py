"""The deployment from nothing to measured figures, in seven stages that can be run one by one and again."""

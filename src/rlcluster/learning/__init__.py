"""From a rollout to a step of the optimizer: actor, targets, losses, learner."""

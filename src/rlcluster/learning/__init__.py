"""From a rollout to a step of the optimiser: actor, targets, losses, learner."""

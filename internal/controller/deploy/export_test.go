package deploy

import "skyserve/provision"

// SetProber replaces reading the status of machines from their agents.
func (k *Reconciler) SetProber(prober func(have []provision.Object) map[string]AgentReport) {
	k.prober = prober
}

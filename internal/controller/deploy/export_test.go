package deploy

import "skyserve/provision"

// SetProber has the reconciler told how machines do, instead of asking them.
func (k *Reconciler) SetProber(prober func(have []provision.Object) map[string]AgentReport) {
	k.prober = prober
}

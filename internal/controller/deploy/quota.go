package deploy

import (
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// FitsQuotas reports whether Up can apply a plan within the quotas of the cloud accounts: on other
// offerings where the first ones exceed a quota, and with replicas in other regions. An unknown quota is
// no limit.
func (dp *Deployer) FitsQuotas(p *MachinePlan, quotas []provision.Quota) (bool, error) {
	// Preview has restored Counts: without those of the plan, no replica beyond the existing ones would be missing.
	defer func(counts map[cloud.ReplicaGroup]provision.ClassCounts) { dp.Counts = counts }(dp.Counts)
	dp.Counts = p.counts
	short := map[cloud.ReplicaGroup]int{}
	for {
		over := cloud.LaunchesOverQuota(p.Changes, quotas)
		if len(over) == 0 {
			return dp.missingError(p, nil) == nil, nil
		}
		for _, c := range over {
			if !dp.addMissing(short, p, &provision.AllOfferingsExhaustedError{ID: c.ID(), Region: c.Region()}) {
				return false, nil
			}
		}
		next, err := dp.planFor(p.Observed, short)
		if err != nil {
			return false, err
		}
		p = next
	}
}

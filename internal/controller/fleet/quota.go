package fleet

import (
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Fits says whether a plan can be carried out within the quotas of the accounts, as Up
// does it: on other offerings where the first ones are over quota, and with replicas in
// other regions. A quota that is not known bounds nothing.
func (f *Fleet) Fits(p *Plan, quotas []provision.Quota) (bool, error) {
	short := map[cloud.Group]int{}
	for {
		over := cloud.OverQuota(p.Changes, quotas)
		if len(over) == 0 {
			return f.lacking(p, nil) == nil, nil
		}
		for _, c := range over {
			if !f.addShort(short, p, &provision.NoCapacityError{ID: c.ID(), Region: c.Region()}) {
				return false, nil
			}
		}
		next, err := f.planFor(p.Have, short)
		if err != nil {
			return false, err
		}
		p = next
	}
}

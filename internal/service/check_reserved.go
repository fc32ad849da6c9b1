package service

import "strings"

// checkReservationIDs rejects the ids of reservations of another cloud, and an id that occurs twice.
func (c *checker) checkReservationIDs(r *RegionSpec, p path) {
	first := map[string]path{}
	for i, held := range r.Reserved {
		at := p.key("reserved").index(i).key("id")
		if held.ID == "" || !c.valid(at) {
			continue
		}
		cloud, isAWS := r.Name.Cloud(), strings.HasPrefix(held.ID, "cr-")
		switch {
		case cloud != CloudAWS && cloud != CloudGCP:
			c.reportProblem(at, "is only valid for cloud regions, but the region is %s", r.Name)
		case cloud == CloudAWS && !isAWS:
			c.reportProblem(at, "must be the id of an AWS capacity reservation, such as cr-0123456789abcdef0")
		}
		if before, duplicate := first[held.ID]; duplicate {
			c.reportProblem(at, "duplicates %s", before)
		}
		first[held.ID] = at
	}
}

package core

import (
	"time"

	"skyserve/internal/service"
)

// Rank is where an order puts a waiting request at a time, for whoever keeps
// another queue than a balancer's: an engine's, in a simulation.
type Rank struct {
	stage        int
	due, arrived time.Duration
}

// RankOf is the rank of a request of a tier that arrived at a time. tauN and tauP
// are Config's and matter to OrderDPA alone.
func RankOf(order Order, targets Targets, tauN, tauP time.Duration, tier service.Tier, arrived, now time.Duration) Rank {
	o := ordering{order: order, targets: targets, tauN: tauN, tauP: tauP}
	s := o.position(tier, arrived, now)
	return Rank{stage: s.Stage, due: s.Due, arrived: arrived}
}

// Before says whether r goes before o: by stage, then by when it is due where the
// order asks that, then by arrival.
func (r Rank) Before(o Rank) bool {
	switch {
	case r.stage != o.stage:
		return r.stage < o.stage
	case r.due != o.due:
		return r.due < o.due
	}
	return r.arrived < o.arrived
}

package controller

import (
	"cmp"
	"math"
	"slices"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// freshKV is how old a replica's figures, or a balancer's, may be for a decision: a
// few of a strategy's looks would else be made on one and the same.
const freshKV = 3 * time.Second

// scalingInputs is all that a scaling decision is made from.
type scalingInputs struct {
	now      time.Time
	current  CurrentState
	snapshot *telemetry.Snapshot
	// loads is the interactive load of the last minutes, uncached prompt tokens a
	// second; what is not in it is unknown.
	loads   map[place]float64
	targets map[place]*plan.Target
	review  *telemetry.Review // in force; nil before the first
	taken   map[string]bool   // donated replicas that somebody gets in this turn
}

// member is a replica that was decided on, with what a balancer tells of it.
type member struct {
	CurrentReplica
	seen *telemetry.ReplicaSnapshot // nil = nothing
}

// scaled is the replicas of one model in one region: what a strategy scales.
type scaled struct {
	place
	bounds  service.Bounds
	gpu     service.GPU // that its replicas are, or stand for
	differs mismatch    // from what the plan wants
	members []member
}

// serves says whether a replica takes part in what is scaled: it is neither drained
// by hand nor lent.
func (m member) serves() bool { return !m.Drained && m.Donation == nil }

func (m member) ready() bool {
	return m.serves() && m.seen != nil && m.seen.State == service.StateReady
}

// fresh says whether what is seen of a replica is of now.
func (m member) fresh() bool {
	return m.seen.AgeMillis != nil && time.Duration(*m.seen.AgeMillis)*time.Millisecond <= freshKV
}

// lent says whether a replica can be taken back.
func (r CurrentReplica) lent() bool { return r.Donation != nil && !r.Donation.Leaving() }

// idle says whether a donated replica has finished what it had: no balancer has it
// any more.
func (m member) idle() bool { return m.seen == nil || m.seen.State == service.StateDonated }

// groups are what can be scaled, in the order of service.yaml.
func (s *scalingInputs) groups() []scaled {
	seen := map[string]*telemetry.ReplicaSnapshot{}
	for i := range s.snapshot.Regions {
		for k := range s.snapshot.Regions[i].Replicas {
			r := &s.snapshot.Regions[i].Replicas[k]
			seen[r.ID] = r
		}
	}
	var out []scaled
	for _, r := range s.current.Spec.Regions {
		for i := range s.current.Spec.Models {
			m := &s.current.Spec.Models[i]
			g := scaled{place: place{m.Name, r.Name}, bounds: s.current.Spec.BoundsFor(m.Name, r.Name)}
			if len(m.GPUs) > 0 {
				g.gpu = service.GPU{Type: m.GPUs[0].Type, Count: max(1, m.GPUs[0].Count)}
			}
			for _, rep := range s.current.Replicas {
				if told := seen[rep.ID]; rep.Model == "" && told != nil {
					rep.Model = told.Model
				}
				if rep.Region == r.Name && rep.Model == m.Name {
					g.members = append(g.members, member{rep, seen[rep.ID]})
				}
			}
			g.differs = mismatchOf(countsAt(s.review, s.now, g.place), g.members)
			out = append(out, g)
		}
	}
	return out
}

// fleet is the groups as a strategy sees them.
func (s *scalingInputs) fleet(groups []scaled) *plan.Fleet {
	f := &plan.Fleet{Spare: map[string]int{}}
	for _, g := range groups {
		e := plan.Endpoint{Model: g.model, Region: string(g.region), Min: g.bounds.Min, Max: g.bounds.Max, Utilisation: g.utilisation(), Target: s.targets[g.place]}
		if m := s.told(g); m != nil {
			waiting := m.Queued + g.pending()
			e.Waiting, e.Fast = &waiting, &plan.FirstTokens{All: m.FirstTokens, Late: m.Late}
		}
		for _, m := range g.members {
			switch {
			case m.lent():
				e.Donated++
			case !m.serves(): // takes up room, and serves nobody
				e.Draining++
				e.Max--
			case m.ready():
				e.Ready++
			default:
				e.Starting++
			}
		}
		e.Max = max(e.Max, 0)
		e.Min = min(e.Min, e.Max)
		if load, known := s.loads[g.place]; known {
			e.Observed = &load
		}
		if g.region.Cloud() != service.CloudStatic {
			f.Spare[e.Region] += g.bounds.Max
		}
		f.Endpoints = append(f.Endpoints, e)
	}
	return f
}

// told is what the balancers of a group's region say of its model; nil where they did
// not of late.
func (s *scalingInputs) told(g scaled) *telemetry.ModelSnapshot {
	for i := range s.snapshot.Regions {
		r := &s.snapshot.Regions[i]
		if r.Name != g.region || heard(*r) > freshKV {
			continue
		}
		for k := range r.Models {
			if r.Models[k].Model == g.model {
				return &r.Models[k]
			}
		}
	}
	return nil
}

// pending is how many requests wait in the engines that are ready and told it of
// late; of the others nothing is known, and what is held shows whether they are full.
func (g scaled) pending() (n int) {
	for _, m := range g.members {
		if m.ready() && m.seen.Pending != nil && m.fresh() {
			n += *m.seen.Pending
		}
	}
	return n
}

// utilisation is the mean KV memory in use over the replicas that are ready; nil
// where one of them did not tell it of late, for half of a picture is none.
func (g scaled) utilisation() *float64 {
	sum, n := 0.0, 0
	for _, m := range g.members {
		if !m.ready() {
			continue
		}
		if m.seen.KV == nil || !m.fresh() {
			return nil
		}
		sum += *m.seen.KV
		n++
	}
	if n == 0 {
		return nil
	}
	mean := sum / float64(n)
	return &mean
}

// least are n ready replicas: those first that run on something else than the plan wants,
// then those with the least to finish, of equals the last.
func (g scaled) least(n int) []string {
	ready := slices.DeleteFunc(slices.Clone(g.members), func(m member) bool { return !m.ready() })
	slices.Reverse(ready)
	slices.SortStableFunc(ready, func(a, b member) int {
		return cmp.Or(compareBools(g.differs.excess[b.ID], g.differs.excess[a.ID]), cmp.Compare(a.seen.Outstanding, b.seen.Outstanding))
	})
	return idsOf(ready[:min(n, len(ready))])
}

// compareBools puts false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// serving is how many serve or are starting to.
func (g scaled) serving() int {
	n := 0
	for _, m := range g.members {
		if m.serves() {
			n++
		}
	}
	return n
}

func idsOf(members []member) []string {
	var ids []string
	for _, m := range members {
		ids = append(ids, m.ID)
	}
	return ids
}

// observedMinutes is the past that counts as the present load: long enough for the
// chance of single requests to even out, short enough for lt-ua's 20 minutes.
const observedMinutes = 5

// observedLoads are the interactive loads of the last complete minutes before a
// time. One of which a minute is unknown is left out.
func observedLoads(h *forecast.History, now time.Time) map[place]float64 {
	last := now.Add(-minuteSettles).Unix() / 60 // the minute before it is complete
	out := map[place]float64{}
	partly := map[place]bool{}
	for i := range h.Series {
		s := &h.Series[i]
		if s.Tier == service.TierDeferred {
			continue
		}
		at := place{s.Model, s.Region}
		for m := last - observedMinutes; m < last; m++ {
			k := m - h.First
			if k < 0 || k >= int64(h.Minutes) || math.IsNaN(s.Values[k]) {
				partly[at] = true
				break
			}
			out[at] += (s.Values[k] - s.Cached[k]) / (observedMinutes * 60)
		}
	}
	for at := range partly {
		delete(out, at)
	}
	return out
}

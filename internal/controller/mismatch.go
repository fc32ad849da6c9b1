package controller

import (
	"slices"

	"skyserve/provision"
)

// mismatch is how the replicas of a group differ from what a plan wants them to run on. Its zero
// value is that of a group of which the plan, or a machine, does not say.
type mismatch struct {
	missing []provision.Class // of which more are wanted than serve
	excess  map[string]bool   // ids of those that serve on something else
}

// mismatchOf holds replicas that serve against the counts that a plan wants by class.
func mismatchOf(counts provision.Counts, members []member) mismatch {
	if counts == nil {
		return mismatch{}
	}
	var serve []provision.Object
	for _, m := range members {
		if !m.serves() {
			continue
		}
		if m.On == (provision.Class{}) {
			return mismatch{}
		}
		serve = append(serve, provision.Object{ID: m.ID, Offering: &provision.Offering{GPU: m.On.GPU, GPUs: m.On.GPUs, Capacity: m.On.Capacity}})
	}
	matched, missing := counts.Fit(serve)
	out := mismatch{missing: missing, excess: map[string]bool{}}
	for i, o := range serve {
		if _, fits := matched[i]; !fits {
			out.excess[o.ID] = true
		}
	}
	return out
}

// launch is what n new replicas are to run on, what is missing first.
func (m mismatch) launch(g place, n int) []Launching {
	var out []Launching
	for i := range n {
		on := provision.Class{}
		if i < len(m.missing) {
			on = m.missing[i]
		}
		if at := slices.IndexFunc(out, func(l Launching) bool { return l.On == on }); at >= 0 {
			out[at].Count++
			continue
		}
		out = append(out, Launching{g.model, g.region, 1, on})
	}
	return out
}

// expendable is how many of n replicas can be given up: none while something is missing that
// the plan wants, since what serves stands in for it, and one of another kind may carry more.
func (m mismatch) expendable(n int) int {
	if len(m.missing) > 0 {
		return 0
	}
	return n
}

// exchange is the one replica that another is launched in the place of, on what is missing;
// nil where nothing is, or one is on its way.
func (g scaled) exchange() []Replacing {
	if len(g.differs.missing) == 0 || len(g.differs.excess) == 0 {
		return nil
	}
	for _, m := range g.members {
		if m.serves() && !m.ready() {
			return nil
		}
	}
	for _, id := range g.least(len(g.members)) {
		if g.differs.excess[id] {
			return []Replacing{{id, g.differs.missing[0]}}
		}
	}
	return nil
}

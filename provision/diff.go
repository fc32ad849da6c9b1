package provision

import (
	"cmp"
	"slices"

	"skyserve/internal/service"
)

// Action is what a change does.
type Action string

// The actions.
const (
	ActionLaunch    Action = "launch"
	ActionReplace   Action = "replace"
	ActionReload    Action = "reload" // it reads its configuration again and goes on
	ActionMend      Action = "mend"   // it is set right where it is
	ActionTerminate Action = "terminate"
)

// Change is one step from what is to what should be.
type Change struct {
	Action Action
	// Want is set for launch, replace, reload and mend.
	Want Want
	// Have is set for replace, reload, mend and terminate, and for the launch of an object
	// of which a dead trace is left.
	Have   Object
	Reason string
	// CostPerHour is how much more (less, when negative) the service costs an
	// hour once the change is done, in USD.
	CostPerHour float64
	// Stage orders the changes: those of one stage may run at once, and a stage
	// begins when the one before it is done.
	Stage int
}

// ID is the id of the object that the change is about.
func (c Change) ID() string { return cmp.Or(c.Want.ID, c.Have.ID) }

// Kind is the kind of the object that the change is about.
func (c Change) Kind() Kind { return cmp.Or(c.Want.Kind, c.Have.Kind) }

// Region is the region of the object that the change is about.
func (c Change) Region() service.Region { return cmp.Or(c.Want.Region, c.Have.Region) }

// Changes is what Diff decides, in the order of carrying out.
type Changes []Change

// CostPerHour is by how much all changes together raise the cost of an hour, in USD.
func (cs Changes) CostPerHour() float64 {
	var sum float64
	for _, c := range cs {
		sum += c.CostPerHour
	}
	return sum
}

// Diff is what has to change so that what exists becomes what is wanted. It
// depends on neither the order of its arguments nor anything else.
//
// What machines stand on (firewalls, identities) is made and mended first of all,
// and goes last. Then what is missing is launched, all of it at once. Then what differs is
// replaced so that the service goes on: replicas one a region at a time,
// balancers one at a time (also those that only reload, so that a configuration
// that one refuses does not reach the others), the controller last. What is no longer wanted goes
// at the end, when nothing points at it any more.
func Diff(want []Want, have []Object) Changes {
	byID := map[string][]Object{}
	for _, o := range have {
		byID[o.ID] = append(byID[o.ID], o)
	}
	var changes Changes
	wanted := map[string]bool{}
	for _, w := range want {
		if wanted[w.ID] {
			continue
		}
		wanted[w.ID] = true
		changes = append(changes, diffOne(w, byID[w.ID])...)
	}
	for _, o := range have {
		if !wanted[o.ID] {
			changes = append(changes, terminate(o, "no longer wanted"))
		}
	}
	order(changes)
	return changes
}

// diffOne compares a wanted object with all that carry its id.
func diffOne(w Want, have []Object) Changes {
	keep, spare := choose(w, have)
	var changes Changes
	for _, o := range spare {
		changes = append(changes, terminate(o, "a second one of the same id"))
	}
	switch {
	case keep == nil:
		return append(changes, Change{Action: ActionLaunch, Want: w, Reason: "new", CostPerHour: w.CostPerHour})
	case keep.Gone != "":
		return append(changes, Change{Action: ActionLaunch, Want: w, Have: *keep, Reason: keep.Gone, CostPerHour: w.CostPerHour})
	}
	if action, reason := differs(w, *keep); action != "" {
		changes = append(changes, Change{Action: action, Want: w, Have: *keep, Reason: reason, CostPerHour: w.CostPerHour - keep.CostPerHour})
	}
	return changes
}

// choose picks the object to keep among those of one id: one that runs, and
// of those one that needs no change, and of those the one whose handle sorts first.
func choose(w Want, have []Object) (keep *Object, spare []Object) {
	if len(have) == 0 {
		return nil, nil
	}
	sorted := slices.Clone(have)
	slices.SortFunc(sorted, func(a, b Object) int {
		return cmp.Or(cmp.Compare(rank(w, a), rank(w, b)), cmp.Compare(a.Handle, b.Handle))
	})
	return &sorted[0], sorted[1:]
}

// OneOfEach leaves one object of each id, in the order of have: the one that Diff keeps. Where it
// is not known what is wanted of an id, none of its objects counts as wanted more than another.
func OneOfEach(want []Want, have []Object) []Object {
	wanted, byID := map[string]Want{}, map[string][]Object{}
	for _, w := range want {
		wanted[w.ID] = w
	}
	for _, o := range have {
		byID[o.ID] = append(byID[o.ID], o)
	}
	return slices.DeleteFunc(slices.Clone(have), func(o Object) bool {
		keep, _ := choose(wanted[o.ID], byID[o.ID])
		return keep.Handle != o.Handle
	})
}

// rank is lower the less has to be done to an object.
func rank(w Want, o Object) int {
	if o.Gone != "" {
		return 3
	}
	switch action, _ := differs(w, o); action {
	case ActionReplace:
		return 2
	case ActionReload, ActionMend:
		return 1
	}
	return 0
}

// differs says what has to be done to an object for it to be what is wanted, and
// why; nothing where it is. An empty Build asks for no particular one.
func differs(w Want, o Object) (action Action, reason string) {
	switch {
	case o.Kind != w.Kind || o.Region != w.Region:
		return ActionReplace, "is a different thing"
	case w.Kind.foundation() && o.Spec != w.Spec:
		return ActionMend, "was changed"
	case w.Address != "" && o.Address != w.Address || w.Admin != "" && o.Admin != w.Admin:
		return ActionReplace, "address changed"
	case w.Build != "" && o.Build != w.Build:
		return ActionReplace, "executable changed"
	case o.Spec == w.Spec:
		return "", ""
	case o.Fixed != "" && o.Fixed == w.Fixed:
		return ActionReload, "reload: configuration changed"
	}
	return ActionReplace, "configuration changed"
}

func terminate(o Object, reason string) Change {
	c := Change{Action: ActionTerminate, Have: o, Reason: reason}
	if o.Gone == "" {
		c.CostPerHour = -o.CostPerHour
	}
	return c
}

// order sorts changes into the order of carrying out and numbers their stages.
func order(changes Changes) {
	slices.SortFunc(changes, func(a, b Change) int {
		return cmp.Or(
			cmp.Compare(a.group(), b.group()),
			cmp.Compare(a.Region(), b.Region()),
			cmp.Compare(a.ID(), b.ID()),
			cmp.Compare(a.Have.Handle, b.Have.Handle),
		)
	})
	inRegion := map[service.Region]int{}
	rolling, balancers := 0, 0
	for i := range changes {
		c := &changes[i]
		switch c.group() {
		case groupFoundation:
		case groupLaunch:
			c.Stage = 1
		case groupReplicas:
			inRegion[c.Region()]++
			c.Stage = 1 + inRegion[c.Region()]
			rolling = max(rolling, inRegion[c.Region()])
		case groupBalancers:
			balancers++
			c.Stage = 1 + rolling + balancers
		case groupController:
			c.Stage = rolling + balancers + 2
		case groupGone:
			c.Stage = rolling + balancers + 3
		case groupFoundationGone:
			c.Stage = rolling + balancers + 4
		}
	}
	compact(changes)
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(a.Stage, b.Stage) })
}

// The groups of changes, in order.
const (
	groupFoundation = iota
	groupLaunch
	groupReplicas
	groupBalancers
	groupController
	groupGone
	groupFoundationGone
)

func (c Change) group() int {
	switch {
	case c.Kind().foundation() && c.Action == ActionTerminate:
		return groupFoundationGone
	case c.Kind().foundation():
		return groupFoundation
	case c.Action == ActionLaunch:
		return groupLaunch
	case c.Action == ActionTerminate:
		return groupGone
	case c.Kind() == KindReplica:
		return groupReplicas
	case c.Kind() == KindBalancer:
		return groupBalancers
	}
	return groupController
}

// compact renumbers the stages so that none is empty.
func compact(changes Changes) {
	var stages []int
	for _, c := range changes {
		stages = append(stages, c.Stage)
	}
	slices.Sort(stages)
	stages = slices.Compact(stages)
	for i := range changes {
		changes[i].Stage, _ = slices.BinarySearch(stages, changes[i].Stage)
	}
}

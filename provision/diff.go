package provision

import (
	"cmp"
	"slices"

	"skyserve/internal/service"
)

// ChangeAction is the kind of a change.
type ChangeAction string

// The actions.
const (
	ActionLaunch    ChangeAction = "launch"
	ActionReplace   ChangeAction = "replace"
	ActionReload    ChangeAction = "reload" // the object loads its configuration again and keeps running
	ActionRepair    ChangeAction = "repair" // the object is repaired in place
	ActionTerminate ChangeAction = "terminate"
)

// Change is one step from the observed to the desired state.
type Change struct {
	Action ChangeAction
	// Desired is set for launch, replace, reload and repair.
	Desired Desired
	// Observed is set for replace, reload, repair and terminate. For a launch it is the object with the same id that does
	// not run any more, if its record still exists: see Object.TerminatedReason.
	Observed Object
	Reason   string
	// CostPerHour is the difference in the cost of the service, in USD per hour; negative for savings.
	CostPerHour float64
	// Stage is the position in the order of execution. The changes of one stage may run concurrently. A
	// stage starts when the previous stage is done.
	Stage int

	isDown bool // the replica to replace does not serve: see ReplaceFirst
}

// ID returns the id of the changed object.
func (c Change) ID() string { return cmp.Or(c.Desired.ID, c.Observed.ID) }

// Kind returns the kind of the changed object.
func (c Change) Kind() ObjectKind { return cmp.Or(c.Desired.Kind, c.Observed.Kind) }

// Region returns the region of the changed object.
func (c Change) Region() service.Region { return cmp.Or(c.Desired.Region, c.Observed.Region) }

// Changes is the output of Diff, in the order of execution.
type Changes []Change

// CostPerHour returns the difference in cost of all changes together, in USD per hour.
func (cs Changes) CostPerHour() float64 {
	var sum float64
	for _, c := range cs {
		sum += c.CostPerHour
	}
	return sum
}

// Diff returns the changes from the observed to the desired state. The result does not depend on the
// order of the arguments.
//
// Prerequisites of machines (firewalls, identities, stored binaries) are created and repaired first, and terminated
// last. Then all missing objects are launched at once. Then objects that differ are replaced in a rolling update:
// first replicas; then balancers, one at a time; then the name server. Of the replicas of a model, the
// first one is replaced before the others, then one per region at a time; if several regions have only one replica of the
// model, these are replaced one after the other. Balancers also reload one at a time: a configuration that the first one
// rejects does not reach the others. Excess objects are terminated at the end, when no other object refers to them.
func Diff(want []Desired, have []Object) Changes {
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
		changes = append(changes, diffObject(w, byID[w.ID])...)
	}
	for _, o := range have {
		if !wanted[o.ID] {
			changes = append(changes, terminateChange(o, "no longer desired"))
		}
	}
	sortIntoStages(changes, have)
	return changes
}

// ReplaceFirst reorders changes so that replicas for which isDown is true are replaced before other replicas: they do not
// serve now, and their replacements serve while the others are replaced. have are the objects that Diff received.
func (cs Changes) ReplaceFirst(have []Object, isDown func(Object) bool) {
	for i, c := range cs {
		cs[i].isDown = c.group() == groupReplicas && isDown(c.Observed)
	}
	sortIntoStages(cs, have)
}

// diffObject compares a desired object with all objects that have its id.
func diffObject(w Desired, have []Object) Changes {
	keep, duplicates := chooseObject(w, have)
	var changes Changes
	for _, o := range duplicates {
		changes = append(changes, terminateChange(o, "duplicate id"))
	}
	switch {
	case keep == nil:
		return append(changes, Change{Action: ActionLaunch, Desired: w, Reason: "new", CostPerHour: w.CostPerHour})
	case keep.TerminatedReason != "":
		return append(changes, Change{Action: ActionLaunch, Desired: w, Observed: *keep, Reason: keep.TerminatedReason, CostPerHour: w.CostPerHour})
	}
	if action, reason := requiredAction(w, *keep); action != "" {
		changes = append(changes, Change{Action: action, Desired: w, Observed: *keep, Reason: reason, CostPerHour: w.CostPerHour - keep.CostPerHour})
	}
	return changes
}

// chooseObject selects the object to keep among those of one id: preferably a running one, then one that
// requires no change, then the one whose handle sorts first.
func chooseObject(w Desired, have []Object) (keep *Object, duplicates []Object) {
	if len(have) == 0 {
		return nil, nil
	}
	sorted := slices.Clone(have)
	slices.SortFunc(sorted, func(a, b Object) int {
		return cmp.Or(cmp.Compare(changeRank(w, a), changeRank(w, b)), cmp.Compare(a.Handle, b.Handle))
	})
	return &sorted[0], sorted[1:]
}

// OnePerID keeps one object per id, in the order of have: the object that Diff would keep. For an id
// that is not in want, all running objects rank the same.
func OnePerID(want []Desired, have []Object) []Object {
	wanted, byID := map[string]Desired{}, map[string][]Object{}
	for _, w := range want {
		wanted[w.ID] = w
	}
	for _, o := range have {
		byID[o.ID] = append(byID[o.ID], o)
	}
	return slices.DeleteFunc(slices.Clone(have), func(o Object) bool {
		keep, _ := chooseObject(wanted[o.ID], byID[o.ID])
		return keep.Handle != o.Handle
	})
}

// changeRank is lower for objects that require a smaller change.
func changeRank(w Desired, o Object) int {
	if o.TerminatedReason != "" {
		return 3
	}
	switch action, _ := requiredAction(w, o); action {
	case ActionReplace:
		return 2
	case ActionReload, ActionRepair:
		return 1
	}
	return 0
}

// requiredAction returns the action that brings an object to the desired state, and the reason; empty
// when the object already matches. An empty BuildHash matches any.
func requiredAction(w Desired, o Object) (action ChangeAction, reason string) {
	switch {
	case o.Kind != w.Kind || o.Region != w.Region:
		return ActionReplace, "kind or region changed"
	case w.Kind.isPrerequisite() && o.SpecHash != w.SpecHash:
		return ActionRepair, "does not match its configuration"
	case w.Address != "" && o.Address != w.Address || w.Admin != "" && o.Admin != w.Admin:
		return ActionReplace, "address changed"
	case w.BuildHash != "" && o.BuildHash != w.BuildHash:
		return ActionReplace, "binary changed"
	case o.SpecHash == w.SpecHash:
		return "", ""
	case o.ImmutableHash != "" && o.ImmutableHash == w.ImmutableHash:
		return ActionReload, "reload: configuration changed"
	}
	return ActionReplace, "configuration changed"
}

func terminateChange(o Object, reason string) Change {
	c := Change{Action: ActionTerminate, Observed: o, Reason: reason}
	if o.TerminatedReason == "" {
		c.CostPerHour = -o.CostPerHour
	}
	return c
}

// sortIntoStages sorts changes into the order of execution and numbers their stages.
func sortIntoStages(changes Changes, have []Object) {
	slices.SortFunc(changes, func(a, b Change) int {
		return cmp.Or(
			cmp.Compare(a.group(), b.group()),
			compareDown(a, b),
			cmp.Compare(a.Region(), b.Region()),
			cmp.Compare(a.ID(), b.ID()),
			cmp.Compare(a.Observed.Handle, b.Observed.Handle),
		)
	})
	inRegion := map[service.Region]int{}
	positions := rollingPositions{running: map[modelInRegion]int{}, positions: map[string]map[int]bool{}, first: map[string]int{}}
	positions.countRunning(have)
	rolling, balancers := 0, 0
	for i := range changes {
		c := &changes[i]
		switch c.group() {
		case groupPrerequisites:
		case groupLaunch:
			c.Stage = 1
		case groupReplicas:
			at := positions.position(c.Observed, inRegion[c.Region()]+1)
			inRegion[c.Region()] = at
			c.Stage = 1 + at
			rolling = max(rolling, at)
		case groupBalancers:
			balancers++
			c.Stage = 1 + rolling + balancers
		case groupNameServer:
			c.Stage = rolling + balancers + 2
		case groupTerminate:
			c.Stage = rolling + balancers + 3
		case groupTerminatePrerequisites:
			c.Stage = rolling + balancers + 4
		}
	}
	compactStages(changes)
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(a.Stage, b.Stage) })
}

// compareDown sorts replicas that are down before others.
func compareDown(a, b Change) int {
	switch {
	case a.isDown == b.isDown:
		return 0
	case a.isDown:
		return -1
	}
	return 1
}

// modelInRegion is the replicas of a model in a region.
type modelInRegion struct {
	model  string
	region service.Region
}

// rollingPositions gives replicas their positions in a rolling update. The first replica of a model is alone at its
// position, so that a version that does not become ready affects only one replica. Replicas that are the only one of
// their model in their region have different positions, so that the model's replicas in other regions serve in the
// meantime.
type rollingPositions struct {
	running   map[modelInRegion]int
	positions map[string]map[int]bool // taken by replicas that are the only one of their model in their region, by model
	first     map[string]int          // the position of the first replica, by model
}

// countRunning counts the running replicas.
func (r rollingPositions) countRunning(have []Object) {
	for _, o := range have {
		if o.Kind == KindReplica && o.TerminatedReason == "" {
			r.running[modelInRegion{o.Labels["model"], o.Region}]++
		}
	}
}

// position returns the position of a replica: the lowest permitted one that is at least `at`.
func (r rollingPositions) position(o Object, at int) int {
	model := o.Labels["model"]
	first, follows := r.first[model]
	if follows {
		at = max(at, first+1)
	}
	if r.running[modelInRegion{model, o.Region}] == 1 {
		taken := r.positions[model]
		if taken == nil {
			taken = map[int]bool{}
			r.positions[model] = taken
		}
		for taken[at] {
			at++
		}
		taken[at] = true
	}
	if !follows {
		r.first[model] = at
	}
	return at
}

// The groups of changes, in order of execution.
const (
	groupPrerequisites = iota
	groupLaunch
	groupReplicas
	groupBalancers
	groupNameServer
	groupTerminate
	groupTerminatePrerequisites
)

func (c Change) group() int {
	switch {
	case c.Kind().isPrerequisite() && c.Action == ActionTerminate:
		return groupTerminatePrerequisites
	case c.Kind().isPrerequisite():
		return groupPrerequisites
	case c.Action == ActionLaunch:
		return groupLaunch
	case c.Action == ActionTerminate:
		return groupTerminate
	case c.Kind() == KindReplica:
		return groupReplicas
	case c.Kind() == KindBalancer:
		return groupBalancers
	}
	return groupNameServer
}

// compactStages renumbers the stages so that none is empty.
func compactStages(changes Changes) {
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

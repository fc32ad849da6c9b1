package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/static"
)

// scaling is a change of a running service's replicas, told on talk.
type scaling struct {
	*upRun
	decided fleet.Decisions
	changed bool
}

// openScaling takes the lock of a service and reads what is wanted of it.
func openScaling(ctx context.Context, name string, talk io.Writer, clouds cloudFlags) (s *scaling, unlock func(), err error) {
	svc, err := findService(name)
	if err != nil {
		return nil, nil, err
	}
	spec, err := deployedSpec("", svc)
	if err != nil {
		return nil, nil, err
	}
	if spec == nil {
		return nil, nil, usage(fmt.Errorf("reading the service.yaml of %s: it is missing, or cannot be read", svc.Name()), "")
	}
	if cloud.Rents(spec) {
		return nil, nil, usage(fmt.Errorf("changing replicas of %s one by one: its region %s is in a cloud", svc.Name(), cloud.Rented(spec)[0]), "'skyserve plan --apply' changes how many there are")
	}
	text, err := os.ReadFile(svc.SpecFile())
	if err != nil {
		return nil, nil, fmt.Errorf("reading the service: %w", err)
	}
	if unlock, err = svc.LockSoon(ctx); err != nil {
		return nil, nil, err
	}
	u := &upRun{
		up:  &up{upOptions: &upOptions{file: svc.SpecFile(), timeout: waitFor(spec), clouds: clouds, wait: true}, talk: talk, begun: time.Now()},
		svc: svc, spec: spec, text: text, only: replicasOnly,
	}
	u.clouds.here = &svc
	s = &scaling{upRun: u}
	if s.decided, err = fleet.ReadDecisions(decisionsFile(svc)); err == nil {
		err = u.open(ctx)
	}
	if err != nil {
		unlock()
		return nil, nil, cloudError(specUsage(err))
	}
	return s, unlock, nil
}

// replicas are those of a model in a region, by their numbers.
func (s *scaling) replicas(model string, region service.Region) []string {
	var ids []string
	for _, o := range s.changes.Have {
		if o.Kind == provision.KindReplica && o.Gone == "" && o.Region == region && o.Labels["model"] == model {
			ids = append(ids, o.ID)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return ids
}

// attached are the replicas of static regions.
func (s *scaling) attached() []service.ReplicaConfig {
	var all []service.ReplicaConfig
	for _, r := range s.spec.Regions {
		if r.Name.Cloud() == service.CloudStatic {
			all = append(all, static.Replicas(s.spec, r)...)
		}
	}
	return all
}

// serving are those of some replicas that are not donated.
func (s *scaling) serving(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return s.decided.Donation(id) != nil })
}

// groupOf is the model and region of a replica, and the ids of all of both.
func (s *scaling) groupOf(id string) (g cloud.Group, ids []string, err error) {
	for _, o := range s.changes.Have {
		if o.ID == id && o.Kind == provision.KindReplica && o.Gone == "" {
			g = cloud.Group{Model: o.Labels["model"], Region: o.Region}
			return g, s.replicas(g.Model, g.Region), nil
		}
	}
	attached := s.attached()
	i := slices.IndexFunc(attached, func(c service.ReplicaConfig) bool { return c.ID == id })
	switch {
	case i < 0:
		return g, nil, &fleet.NoReplicaError{ID: id}
	case attached[i].Model == "":
		return g, nil, &fleet.ModelUnknownError{ID: id}
	}
	g = cloud.Group{Model: attached[i].Model, Region: attached[i].Region}
	for _, c := range attached {
		if c.Model == g.Model && c.Region == g.Region {
			ids = append(ids, c.ID)
		}
	}
	return g, ids, nil
}

// isAttached says whether a replica is a machine of a static region.
func (s *scaling) isAttached(id string) bool {
	return slices.ContainsFunc(s.attached(), func(c service.ReplicaConfig) bool { return c.ID == id })
}

// fewer is an error where a replica cannot be spared.
func (s *scaling) fewer(id string) error {
	g, ids, err := s.groupOf(id)
	if err != nil {
		return err
	}
	b, n := s.spec.BoundsFor(g.Model, g.Region), len(s.serving(ids))-1
	if s.decided.Donation(id) == nil && n < b.Min {
		return &fleet.BoundsError{Model: g.Model, Region: g.Region, Count: n, Bounds: b}
	}
	return nil
}

// donate is what is decided once a replica is donated from now on.
func (s *scaling) donate(d fleet.Decisions, id string) (fleet.Decisions, error) {
	if d.Donation(id) != nil {
		return d, nil
	}
	if err := s.fewer(id); err != nil {
		return d, err
	}
	now := time.Now().UTC().Round(0)
	how := service.Donation{Since: now, Until: now.Add(s.spec.Autoscale.DonateFor)}
	if s.isAttached(id) {
		how.Until = time.Time{}
	}
	return d.WithDonated(id, how), nil
}

// decide makes decisions hold, and returns once what is emptied has finished what it had, and what
// is used again serves.
func (s *scaling) decide(ctx context.Context, to fleet.Decisions) error {
	before, after := s.decided.Idle(), to.Idle()
	if err := to.Write(decisionsFile(s.svc)); err != nil {
		return err
	}
	s.decided, s.leaving = to, after
	have, err := s.fleet.Provider.List(ctx, s.spec.Name)
	if err != nil {
		return err
	}
	if err := s.handOver(ctx, have, nil); err != nil {
		return err
	}
	h := fleet.Handover{Service: s.spec.Name, Party: s.operator.party, Have: have}
	for _, id := range sortedIDs(after) {
		if !before[id] {
			s.changed = true
			h.Drain(ctx, provision.Object{ID: id, Kind: provision.KindReplica})
			s.line("drained %s", id)
		}
	}
	for _, id := range sortedIDs(before) {
		s.changed = s.changed || !after[id]
	}
	return h.AwaitServing(ctx, s.spec, after, func(id string) {
		if before[id] {
			s.line("ready %s", id)
		}
	})
}

// sortedIDs lists a set.
func sortedIDs(set map[string]bool) []string {
	var ids []string
	for id, is := range set {
		if is {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// classes are what some replicas run on; of one of which that is not known the zero class.
func (s *scaling) classes(ids []string) (exist []provision.Object) {
	for _, id := range ids {
		i := slices.IndexFunc(s.changes.Have, func(o provision.Object) bool { return o.ID == id && o.Gone == "" })
		exist = append(exist, s.changes.Have[i])
	}
	return exist
}

// setCounts makes a model in a region have replicas that serve on what counts ask for: what is
// missing is launched before others go, as far as replicas.max leaves room.
func (s *scaling) setCounts(ctx context.Context, g cloud.Group, counts provision.Counts) error {
	for before := (*string)(nil); ; {
		var err error
		if s.changes.Have, err = s.fleet.Provider.List(ctx, s.spec.Name); err != nil {
			return err
		}
		serving := s.serving(s.replicas(g.Model, g.Region))
		now := strings.Join(serving, " ")
		if before != nil && *before == now { // donated ones take up the room
			return &fleet.BoundsError{Model: g.Model, Region: g.Region, Count: len(s.replicas(g.Model, g.Region)) + 1, Bounds: s.spec.BoundsFor(g.Model, g.Region)}
		}
		before = &now
		matched, missing := counts.Fit(s.classes(serving))
		var others []string
		for i, id := range serving {
			if _, fits := matched[i]; !fits {
				others = append(others, id)
			}
		}
		switch {
		case len(missing) == 0 && len(others) == 0:
			return nil
		case len(missing) == 0 || len(others) > 0 && len(serving) >= s.spec.BoundsFor(g.Model, g.Region).Max:
			if err := s.giveUp(ctx, others[len(others)-1]); err != nil {
				return err
			}
		default:
			if err := s.setCount(ctx, g, len(serving)+1, missing[0]); err != nil {
				return err
			}
		}
	}
}

// giveUp donates a replica where the service donates, else removes it.
func (s *scaling) giveUp(ctx context.Context, id string) error {
	if !s.spec.Autoscale.Donate {
		return s.remove(ctx, id)
	}
	to, err := s.donate(s.decided, id)
	if err != nil {
		return err
	}
	return s.decide(ctx, to)
}

// setCount makes a model in a region have n replicas that serve: donated ones are taken back
// before others are launched, on a class; the highest are removed.
func (s *scaling) setCount(ctx context.Context, g cloud.Group, n int, on provision.Class) error {
	b := s.spec.BoundsFor(g.Model, g.Region)
	switch {
	case g.Region.Cloud() == service.CloudStatic:
		return fmt.Errorf("%s: %w", g.Region, fleet.ErrNotOurs)
	case n < b.Min || n > b.Max:
		return &fleet.BoundsError{Model: g.Model, Region: g.Region, Count: n, Bounds: b}
	}
	all := s.replicas(g.Model, g.Region)
	serving := s.serving(all)
	for len(serving) > n {
		if err := s.remove(ctx, serving[len(serving)-1]); err != nil {
			return err
		}
		serving = serving[:len(serving)-1]
	}
	to := s.decided
	for _, d := range s.latestDonated(all) {
		o := s.classes([]string{d})[0]
		if fits := on.GPU == "" || o.Offering != nil && on.Takes(*o.Offering); fits && len(serving) < n {
			to = to.Reclaimed(d)
			serving = append(serving, d)
		}
	}
	if len(to.Donated) != len(s.decided.Donated) {
		if err := s.decide(ctx, to); err != nil {
			return err
		}
	}
	if len(serving) >= n {
		return nil
	}
	s.changed = true
	counts := provision.Counts{on: n - len(serving)}
	for _, o := range s.classes(all) {
		runs := provision.Class{}
		if o.Offering != nil {
			runs = provision.ClassOf(*o.Offering)
		}
		if on.GPU != "" && o.Offering != nil && on.Takes(*o.Offering) {
			runs = on
		}
		counts[runs]++
	}
	s.fleet.Counts = map[cloud.Group]provision.Counts{g: counts}
	defer func() { s.fleet.Counts = nil }()
	return s.step(ctx, provision.ActionLaunch)
}

// latestDonated are the donated ones of some replicas, those that were donated last first: what
// they hold is the freshest.
func (s *scaling) latestDonated(ids []string) []string {
	var donated []fleet.Donated
	for _, d := range s.decided.Donated {
		if slices.Contains(ids, d.ID) {
			donated = append(donated, d)
		}
	}
	slices.SortStableFunc(donated, func(a, b fleet.Donated) int { return b.Since.Compare(a.Since) })
	var out []string
	for _, d := range donated {
		out = append(out, d.ID)
	}
	return out
}

// remove empties a replica and then ends its machine.
func (s *scaling) remove(ctx context.Context, id string) error {
	if s.isAttached(id) {
		return fmt.Errorf("%s: %w", id, fleet.ErrNotOurs)
	}
	if err := s.fewer(id); err != nil {
		return err
	}
	s.line("draining %s", id)
	if err := s.decide(ctx, s.decided.Reclaimed(id).WithDrained(id, true)); err != nil {
		return err
	}
	gone := slices.DeleteFunc(slices.Clone(s.changes.Have), func(o provision.Object) bool { return o.ID != id })
	if err := fleet.Remove(ctx, s.places, gone, s.progress); err != nil {
		return err
	}
	s.changes.Have = slices.DeleteFunc(s.changes.Have, func(o provision.Object) bool { return o.ID == id })
	s.decided = s.decided.WithDrained(id, false)
	return s.decided.Write(decisionsFile(s.svc))
}

// end says what came of a change, with its exit code. undone is what cannot be done of it.
func (s *scaling) end(ctx context.Context, err error, undone []string) error {
	name := s.spec.Name
	code := exitFailed
	if s.changed {
		code = exitPartial
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(s.talk, "stopped; running it again takes up where this ended")
		return fmt.Errorf("changing the replicas of %s: %w", name, context.Canceled)
	case errors.As(err, new(*exitError)):
		return err
	case err != nil && isDecision(err):
		return undecided(err)
	case err != nil:
		return &exitError{code: code, err: err, hint: fmt.Sprintf("see 'skyserve status %s' and 'skyserve logs %s', then run it again", name, name)}
	case len(undone) > 0:
		return &exitError{code: code, err: errors.New("not all of it can be done: " + strings.Join(undone, "; ")), hint: "the rest was done, or is so already"}
	}
	return nil
}

// isDecision says whether an error is of something that service.yaml does not allow.
func isDecision(err error) bool {
	var bounds *fleet.BoundsError
	var none *fleet.NoReplicaError
	var unknown *fleet.ModelUnknownError
	return errors.As(err, &bounds) || errors.As(err, &none) || errors.As(err, &unknown) || errors.Is(err, fleet.ErrNotOurs)
}

// undecided gives advice to a decision that cannot be.
func undecided(err error) error {
	var bounds *fleet.BoundsError
	switch {
	case errors.As(err, &bounds):
		return usage(err, "change the bounds in service.yaml, then skyserve up")
	case errors.Is(err, fleet.ErrNotOurs):
		return usage(err, "skyserve replica drain ID lets a machine finish what it has")
	}
	return usage(err, "'skyserve replica list' shows what there is")
}

// confirm asks a question that only yes answers. Where nobody can be asked it is an
// error that names the flag.
func confirm(in io.Reader, talk io.Writer, question string) error {
	f, isFile := in.(*os.File)
	if !isFile || !isTerminal(f) {
		return usage(errors.New(question+" nobody can be asked, because standard input is no terminal"), "--yes answers it")
	}
	return answered(in, talk, question)
}

// answered reads the answer to a question.
func answered(in io.Reader, talk io.Writer, question string) error {
	fmt.Fprintf(talk, "%s Only 'yes' goes on: ", question)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if strings.TrimSpace(answer) != "yes" {
		return failed(fmt.Errorf("nothing was changed: the answer was %q", cmp.Or(strings.TrimSpace(answer), "no")), "")
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return nil
}

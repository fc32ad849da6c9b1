package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

const (
	// logsTimeout bounds a request to one machine: a container's log is read from its disk.
	logsTimeout = 10 * time.Second
	// logsInterval is the polling interval of -f, and logsWindow the minimum number of lines of a request.
	logsInterval = time.Second
	logsWindow   = 500
)

// machineLogs are the logs of some machines of a service.
type machineLogs struct {
	view     *serviceView
	machines []provision.Object // all machines, including those that relay requests to others
	wanted   []provision.Object // those whose logs are shown
	unit     string             // unit whose log is shown; empty = each machine's main unit
	out      io.Writer
	errOut   io.Writer
	since    time.Time // of the first line that is shown; zero = all
	// incomplete is set if logs that part selects are missing, because a region could not be listed.
	incomplete bool
}

// showLogs prints the logs of the machines that o.part names.
func showLogs(ctx context.Context, o *logsOptions, out, errOut io.Writer, svc local.Service) error {
	if o.tail > agent.MaxLogLines {
		return usage(fmt.Errorf("--tail: must be at most %d, got %d", agent.MaxLogLines, o.tail), "")
	}
	var since time.Time
	if o.since != "" {
		var err error
		if since, err = sinceTime(o.since, time.Now()); err != nil {
			return usage(fmt.Errorf("--since: %w", err), "")
		}
	}
	l, problems, err := openLogs(ctx, &o.clouds, svc, o.part)
	for _, problem := range problems {
		printMessage(errOut, labelProblem, "%s", problem)
	}
	if err != nil {
		return err
	}
	l.out, l.errOut, l.since, l.incomplete = out, errOut, since, misses(o.part, problems)
	if !o.follow {
		return l.showLogs(ctx, o.tail)
	}
	l.follow(ctx, o.tail)
	return nil
}

// openLogs finds the machines that part names; problems are the regions that could not be listed.
func openLogs(ctx context.Context, clouds *cloudFlags, svc local.Service, part string) (l *machineLogs, problems []string, err error) {
	view, err := openView(ctx, clouds, svc, "reading logs")
	if err != nil {
		return nil, nil, err
	}
	listing, err := view.inspector.List(ctx)
	if err != nil {
		return nil, nil, cloudError(err)
	}
	l = &machineLogs{view: view, machines: listing.Machines()}
	if !cloud.UsesClouds(view.spec) {
		if l.machines, err = addLogOnlyMachines(svc, l.machines); err != nil {
			return nil, nil, err
		}
	}
	if part == provision.ControllerID {
		l.unit, l.wanted = deploy.UnitController, l.controllerMachines(ctx)
	}
	if len(l.wanted) == 0 {
		l.wanted, err = machinesOfPart(view.spec, l.machines, part)
	}
	return l, listing.Problems(), err
}

// misses reports whether logs that part names may be missing where problems are the regions that could not be listed. The
// other parts name machines of one region, which were found or are an error.
func misses(part string, problems []string) bool {
	return len(problems) > 0 && (part == "" || part == provision.ControllerID)
}

// controllerMachines returns the machines that run a controller.
func (l *machineLogs) controllerMachines(ctx context.Context) (wanted []provision.Object) {
	balancers := slices.DeleteFunc(slices.Clone(l.machines), func(o provision.Object) bool { return o.Kind != provision.KindBalancer })
	var running []string
	if l.view.operator.party.Certificate != nil {
		running = deploy.RunningControllers(l.view.delivery(balancers).ReadStatuses(ctx))
	}
	chosen := deploy.ControlMachines(l.view.spec, balancers, running)
	for _, o := range balancers {
		if slices.Contains(chosen, o.ID) {
			wanted = append(wanted, o)
		}
	}
	return wanted
}

// machinesOfPart returns the machines that part names; all machines if part is empty.
func machinesOfPart(spec *service.Spec, machines []provision.Object, part string) ([]provision.Object, error) {
	place, ofRegion := strings.CutPrefix(part, "lb/")
	var wanted []provision.Object
	var ids []string
	for _, o := range machines {
		ids = append(ids, o.ID)
		balancer := ofRegion && o.Kind == provision.KindBalancer && (o.Region.ShortName() == place || string(o.Region) == place)
		if part == "" || o.ID == part || balancer {
			wanted = append(wanted, o)
		}
	}
	if len(wanted) > 0 || part == "" {
		return wanted, nil
	}
	if ofRegion {
		if _, err := regionIndex(spec, place); err != nil {
			return nil, err
		}
	}
	hint := "its balancers and replicas: " + strings.Join(ids, ", ")
	if len(ids) == 0 {
		hint = "no balancer or replica of it is running"
	}
	if slices.ContainsFunc(spec.Regions, func(r service.RegionSpec) bool { return r.Name.Cloud() == service.CloudStatic }) {
		hint += "; an engine of a static region logs where you started it"
	}
	return nil, notFound(fmt.Errorf("%s has no balancer or replica %q", spec.Name, part), hint)
}

// showLogs prints the last lines of each machine, one after the other. If some machines do not
// respond, or some regions could not be listed, it still prints the logs of the others (exit 3).
func (l *machineLogs) showLogs(ctx context.Context, tail int) error {
	lines, errs := l.fetch(ctx, func(int) int { return tail })
	for i, o := range l.wanted {
		l.printLines(o, logSince(lines[i], l.since, logZone(o)))
	}
	err := errors.Join(errs...)
	switch {
	case err == nil && l.incomplete:
		err = errors.New("the logs are incomplete: some regions could not be listed")
	case err == nil:
		return nil
	case len(l.wanted) == 1 && !l.incomplete:
		return failed(err, "'skyserve status' shows its state")
	}
	return &exitError{code: exitPartial, err: err, hint: "'skyserve status' shows their state"}
}

// printLines prints lines of a machine, prefixed with its id if there are several machines.
func (l *machineLogs) printLines(o provision.Object, lines []string) {
	prefix := ""
	if len(l.wanted) > 1 {
		prefix = o.ID + ": "
	}
	for _, line := range lines {
		fmt.Fprintln(l.out, prefix+line)
	}
}

// fetch fetches the last lines of all machines concurrently: count(i) lines of machine i.
func (l *machineLogs) fetch(ctx context.Context, count func(i int) int) (lines [][]string, errs []error) {
	lines, errs = make([][]string, len(l.wanted)), make([]error, len(l.wanted))
	var wg sync.WaitGroup
	for i, o := range l.wanted {
		wg.Go(func() { lines[i], errs[i] = l.fetchOne(ctx, o, count(i)) })
	}
	wg.Wait()
	return lines, errs
}

// hasLocalLog reports whether the log of a machine is a file on this computer.
func hasLocalLog(o provision.Object) bool {
	return cloud.RunsOnThisComputer(o.Region) || deploy.IsEarlierVersion(o)
}

// logZone returns the zone of times without one in the log of a machine: containers and the images of VMs use UTC.
func logZone(o provision.Object) *time.Location {
	if hasLocalLog(o) {
		return time.Local
	}
	return time.UTC
}

// fetchOne fetches the last lines of a machine.
func (l *machineLogs) fetchOne(ctx context.Context, o provision.Object, count int) ([]string, error) {
	switch {
	case count == 0:
		return nil, nil
	case hasLocalLog(o):
		return l.view.svc.UnitTail(o.ID, cmp.Or(l.unit, deploy.UnitNameOf(o.Kind)), count)
	case !deploy.Reachable(o):
		return nil, fmt.Errorf("reading the log of %s: it has no address", o.ID)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, logsTimeout, fmt.Errorf("no response within %s", logsTimeout))
	defer cancel()
	h := l.view.delivery(l.machines)
	text, err := h.AgentClient(o).Logs(ctx, h.Machine(o), cmp.Or(l.unit, deploy.UnitNameOf(o.Kind)), count)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("reading the log of %s: %w", o.ID, context.Cause(ctx))
	}
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), nil
}

// followedLog is the state of a log that is followed.
type followedLog struct {
	lines        []string
	fetched      bool // lines were fetched before
	unresponsive bool // the machine did not respond to the last request
}

// count returns the number of lines of the next request: those that --tail selects, and then the minimum.
func (f *followedLog) count(tail int) int {
	if f.fetched {
		return logsWindow
	}
	return max(tail, logsWindow)
}

// follow prints the last lines of each machine and then new lines until ctx ends. It reports a
// machine that does not respond once, and keeps polling it.
func (l *machineLogs) follow(ctx context.Context, tail int) {
	seen := make([]followedLog, len(l.wanted))
	ticker := time.NewTicker(logsInterval)
	defer ticker.Stop()
	for {
		lines, errs := l.fetch(ctx, func(i int) int { return seen[i].count(tail) })
		if ctx.Err() != nil {
			return // Ctrl-C ends --follow
		}
		for i := range l.wanted {
			l.printNew(l.wanted[i], &seen[i], lines[i], errs[i], tail)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// printNew prints the lines that were added to a log since the last request.
func (l *machineLogs) printNew(o provision.Object, f *followedLog, lines []string, err error, tail int) {
	if err != nil {
		if !f.unresponsive {
			printMessage(l.errOut, labelProblem, "%v", err)
		}
		f.unresponsive = true
		return
	}
	fresh, gap := linesSince(f.lines, lines)
	if !f.fetched {
		fresh = logSince(fresh, l.since, logZone(o))
		fresh = fresh[max(0, len(fresh)-tail):]
	}
	switch {
	case gap && len(lines) < logsWindow: // the whole log
		printMessage(l.errOut, labelProblem, "lines of %s may be missing: its log began anew", o.ID)
	case gap:
		printMessage(l.errOut, labelProblem, "lines of %s may be missing: more than %d lines were written since the last poll", o.ID, logsWindow)
	}
	l.printLines(o, fresh)
	*f = followedLog{lines: lines, fetched: true}
}

// linesSince returns the lines of now, the end of a log, that follow before, an earlier end of the
// same log: those after the longest suffix of before that is a prefix of now. gap is set if
// there is no such suffix.
func linesSince(before, now []string) (fresh []string, gap bool) {
	for i := range before {
		rest := before[i:]
		if len(rest) <= len(now) && slices.Equal(rest, now[:len(rest)]) {
			return now[len(rest):], false
		}
	}
	return now, len(before) > 0
}

// addLogOnlyMachines returns the local machines, including those that have ended and whose
// logs remain.
func addLogOnlyMachines(svc local.Service, machines []provision.Object) ([]provision.Object, error) {
	ids, err := svc.Logs()
	for _, id := range ids {
		if slices.ContainsFunc(machines, func(o provision.Object) bool { return o.ID == id }) {
			continue
		}
		o := provision.Object{ID: id, Kind: provision.KindReplica, Region: service.CloudLocal, TerminatedReason: "terminated"} // its place is unknown
		if provision.IsBalancerID(id) {
			place := strings.TrimPrefix(id, "lb-")
			place = place[:max(0, strings.LastIndexByte(place, '-'))]
			o.Kind, o.Region = provision.KindBalancer, service.Region(service.CloudLocal+"/"+place)
		}
		machines = append(machines, o)
	}
	slices.SortFunc(machines, func(a, b provision.Object) int { return cmp.Compare(a.ID, b.ID) })
	return machines, err
}

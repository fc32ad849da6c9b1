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
	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

const (
	// logsTimeout bounds a request to one machine: a container's log is read from its disk.
	logsTimeout = 10 * time.Second
	// logsEvery is the polling interval of -f, and logsWindow the number of lines of a request.
	logsEvery  = time.Second
	logsWindow = 500
)

// machineLogs are the logs of some machines of a service.
type machineLogs struct {
	view     *serviceView
	machines []provision.Object // all machines, including those that relay requests to others
	wanted   []provision.Object // those whose logs are shown
	unit     string             // unit whose log is shown; empty = each machine's main unit
	out      io.Writer
	talk     io.Writer
}

// showLogs prints the logs of the machines that o.part names.
func showLogs(ctx context.Context, o *logsOptions, out, talk io.Writer, svc local.Service) error {
	if o.tail > agent.MaxLogLines {
		return usage(fmt.Errorf("--tail: must be at most %d, got %d", agent.MaxLogLines, o.tail), "")
	}
	l, problems, err := openLogs(ctx, &o.clouds, svc, o.part)
	for _, problem := range problems {
		fmt.Fprintf(talk, "problem: %s\n", problem)
	}
	if err != nil {
		return err
	}
	l.out, l.talk = out, talk
	if !o.follow {
		return l.show(ctx, o.tail)
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
	if !cloud.Rents(view.spec) {
		if l.machines, err = withLogs(svc, l.machines); err != nil {
			return nil, nil, err
		}
	}
	if part == provision.ControllerID {
		part, l.unit = cloud.ControllerMachine(view.spec), fleet.UnitController
	}
	l.wanted, err = loggingMachines(svc.Name(), l.machines, part)
	return l, listing.Problems(), err
}

// loggingMachines returns the machines that part names; all machines if part is empty.
func loggingMachines(name string, machines []provision.Object, part string) ([]provision.Object, error) {
	place, ofRegion := strings.CutPrefix(part, "lb/")
	var wanted []provision.Object
	var ids []string
	for _, o := range machines {
		ids = append(ids, o.ID)
		balancer := ofRegion && o.Kind == provision.KindBalancer && (o.Region.Place() == place || string(o.Region) == place)
		if part == "" || o.ID == part || balancer {
			wanted = append(wanted, o)
		}
	}
	if len(wanted) == 0 && part != "" {
		return nil, failed(fmt.Errorf("%s of %s has no log", part, name), "available logs: "+strings.Join(ids, ", "))
	}
	return wanted, nil
}

// show prints the last lines of each machine, one after the other. If some machines do not
// respond, it still prints the logs of the others (exit 3).
func (l *machineLogs) show(ctx context.Context, tail int) error {
	lines, errs := l.ask(ctx, tail)
	for i, o := range l.wanted {
		l.print(o, lines[i])
	}
	err := errors.Join(errs...)
	switch {
	case err == nil:
		return nil
	case len(l.wanted) == 1:
		return failed(err, "'skyserve status' shows its state")
	}
	return &exitError{code: exitPartial, err: err, hint: "'skyserve status' shows their state"}
}

// print prints lines of a machine, prefixed with its id if there are several machines.
func (l *machineLogs) print(o provision.Object, lines []string) {
	prefix := ""
	if len(l.wanted) > 1 {
		prefix = o.ID + ": "
	}
	for _, line := range lines {
		fmt.Fprintln(l.out, prefix+line)
	}
}

// ask fetches the last lines of all machines concurrently.
func (l *machineLogs) ask(ctx context.Context, count int) (lines [][]string, errs []error) {
	lines, errs = make([][]string, len(l.wanted)), make([]error, len(l.wanted))
	var wg sync.WaitGroup
	for i, o := range l.wanted {
		wg.Go(func() { lines[i], errs[i] = l.askOne(ctx, o, count) })
	}
	wg.Wait()
	return lines, errs
}

// askOne fetches the last lines of a machine.
func (l *machineLogs) askOne(ctx context.Context, o provision.Object, count int) ([]string, error) {
	switch {
	case count == 0:
		return nil, nil
	case cloud.IsHere(o.Region), fleet.IsEarlier(o):
		return l.view.svc.UnitTail(o.ID, cmp.Or(l.unit, fleet.UnitOf(o.Kind)), count)
	case !fleet.Reachable(o):
		return nil, fmt.Errorf("reading the log of %s: it has no address", o.ID)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, logsTimeout, fmt.Errorf("no response within %s", logsTimeout))
	defer cancel()
	h := l.view.handover(l.machines)
	text, err := h.Operator(o).Logs(ctx, h.Machine(o), cmp.Or(l.unit, fleet.UnitOf(o.Kind)), count)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("reading the log of %s: %w", o.ID, context.Cause(ctx))
	}
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), nil
}

// followed is the state of a log that is followed.
type followed struct {
	lines  []string
	known  bool // lines were fetched before
	silent bool // the machine did not respond to the last request
}

// follow prints the last lines of each machine and then new lines until ctx ends. It reports a
// machine that does not respond once, and keeps polling it.
func (l *machineLogs) follow(ctx context.Context, tail int) {
	seen := make([]followed, len(l.wanted))
	ticker := time.NewTicker(logsEvery)
	defer ticker.Stop()
	for {
		lines, errs := l.ask(ctx, max(tail, logsWindow))
		if ctx.Err() != nil {
			return // Ctrl-C ends --follow
		}
		for i := range l.wanted {
			l.goOn(l.wanted[i], &seen[i], lines[i], errs[i], tail)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// goOn prints the lines that were added to a log since the last request.
func (l *machineLogs) goOn(o provision.Object, f *followed, lines []string, err error, tail int) {
	if err != nil {
		if !f.silent {
			fmt.Fprintf(l.talk, "problem: %v\n", err)
		}
		f.silent = true
		return
	}
	fresh, gap := linesSince(f.lines, lines)
	if !f.known {
		fresh = fresh[max(0, len(fresh)-tail):]
	}
	if gap {
		fmt.Fprintf(l.talk, "problem: lines of %s may be missing: more than %d lines were written since the last poll\n", o.ID, max(tail, logsWindow))
	}
	l.print(o, fresh)
	*f = followed{lines: lines, known: true}
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

// withLogs returns the local machines, and adds those of which only a log remains.
func withLogs(svc local.Service, machines []provision.Object) ([]provision.Object, error) {
	ids, err := svc.Logs()
	for _, id := range ids {
		if slices.ContainsFunc(machines, func(o provision.Object) bool { return o.ID == id }) {
			continue
		}
		o := provision.Object{ID: id, Kind: provision.KindReplica, Gone: "it is gone"}
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

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"skyserve/internal/controller/rollout"
	"skyserve/provision"
	"skyserve/provision/local"
)

// scaling is a change of a running service's replicas, told on talk.
type scaling struct {
	svc   local.Service
	talk  io.Writer
	begun time.Time
	done  int // steps that came to an end
}

// open takes the lock of a service and reads what is wanted of it.
func openRunning(ctx context.Context, name string) (svc local.Service, running *rollout.Running, unlock func(), err error) {
	if svc, err = findService(name); err != nil {
		return svc, nil, nil, err
	}
	if unlock, err = svc.LockSoon(ctx); err != nil {
		return svc, nil, nil, err
	}
	if running, err = rollout.Open(svc); err != nil {
		unlock()
		return svc, nil, nil, specUsage(err)
	}
	return svc, running, unlock, nil
}

// carry makes the service run what to asks for. undone, what cannot be done of a
// larger wish, makes it a part of it: exit code 3, or 1 where nothing else was to do.
func (s *scaling) carry(ctx context.Context, running *rollout.Running, to local.Wanted, undone []string) (changed bool, err error) {
	s.begun = time.Now()
	changed, err = running.Carry(ctx, to, rollout.Scaling{Progress: s.progress, Ready: s.ready})
	name := s.svc.Name()
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(s.talk, "stopped; running it again takes up where this ended")
		return changed, fmt.Errorf("changing the replicas of %s: %w", name, context.Canceled)
	case err != nil:
		code := exitFailed
		if s.done > 0 {
			code = exitPartial
		}
		return changed, &exitError{code: code, err: err, hint: fmt.Sprintf("see 'skyserve status %s' and 'skyserve logs %s', then run it again", name, name)}
	case len(undone) > 0:
		code := exitFailed
		if changed {
			code = exitPartial
		}
		return changed, &exitError{code: code, err: errors.New("not all of it can be done: " + strings.Join(undone, "; ")), hint: "the rest was done, or is so already"}
	}
	return changed, nil
}

// progress is told of every process that is started, reloaded or stopped.
func (s *scaling) progress(c provision.Change, p provision.Phase, err error) {
	verb := map[provision.Action]string{
		provision.ActionLaunch: "started", provision.ActionReplace: "replaced", provision.ActionReload: "reloaded", provision.ActionTerminate: "stopped",
	}[c.Action]
	switch {
	case p == provision.PhaseBegun && c.Action == provision.ActionTerminate:
		s.line("draining %s", c.ID())
	case p == provision.PhaseDone:
		s.done++
		s.line("%s %s", verb, c.ID())
	case p == provision.PhaseFailed:
		s.line("failed %s: %v", c.ID(), err)
	}
}

// ready is told of replicas that serve, or have nothing left to finish.
func (s *scaling) ready(id string, drained bool) {
	s.done++
	if drained {
		s.line("drained %s", id)
		return
	}
	s.line("ready %s", id)
}

// line says one thing that happened and when.
func (s *scaling) line(format string, args ...any) {
	fmt.Fprintf(s.talk, "%6.1fs  %s\n", time.Since(s.begun).Seconds(), fmt.Sprintf(format, args...))
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

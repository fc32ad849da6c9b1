package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"skyserve/internal/identity"
)

const (
	readyTimeout = 5 * time.Second // a model that is busy loading answers late
	retryEvery   = 15 * time.Second
	tailLines    = 5
	// repairDelay is how long a unit may be lost before it is started anew: its reason is to
	// be read, and Docker itself may be starting again.
	repairDelay = 30 * time.Second
)

// keepUnits carries out what is wanted and looks how it does, until ctx ends.
func (a *Agent) keepUnits(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
		}
		life, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.carry(life)
		}()
		select {
		case <-ctx.Done():
		case <-a.changed: // pulls of what is no longer wanted are given up
			a.signalChange()
		}
		stop()
		<-done
	}
}

// carry makes the machine run what is wanted, trying again what fails, and then looks
// on until ctx ends.
func (a *Agent) carry(ctx context.Context) {
	a.mu.Lock()
	d := a.wanted
	a.mu.Unlock()
	a.settle(ctx, d)
	lostAt := time.Time{}
	a.repeat(ctx, a.opts.Look, func() (done bool) {
		switch lost := a.look(ctx, d); {
		case !lost:
			lostAt = time.Time{}
		case lostAt.IsZero():
			lostAt = time.Now()
		case time.Since(lostAt) >= repairDelay:
			a.settle(ctx, d)
			lostAt = time.Time{}
		}
		return false
	})
}

// settle makes the machine run what is wanted, however often that takes.
func (a *Agent) settle(ctx context.Context, d Deployment) {
	a.repeat(ctx, retryEvery, func() (done bool) {
		err := a.apply(ctx, d)
		if err != nil && ctx.Err() == nil {
			a.log.Error("carrying out the deployment", "revision", d.Revision, "err", err)
			a.note(PhaseFailed, err.Error())
		}
		return err == nil
	})
	if ctx.Err() == nil {
		a.log.Info("the deployment is carried out", "revision", d.Revision)
	}
}

// note says how far the machine is.
func (a *Agent) note(phase Phase, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase, a.reason = phase, reason
}

// apply stops what is not wanted, then starts or tells what is.
func (a *Agent) apply(ctx context.Context, d Deployment) error {
	a.note(PhasePreparing, "")
	running, err := a.opts.Runner.Names(ctx)
	if err != nil {
		return err
	}
	for _, name := range running {
		if !slices.ContainsFunc(d.Units, func(u Unit) bool { return u.Name == name }) {
			if err := a.opts.Runner.Stop(ctx, name); err != nil {
				return fmt.Errorf("stopping %s: %w", name, err)
			}
		}
	}
	for _, u := range d.Units {
		if err := a.start(ctx, u); err != nil {
			return fmt.Errorf("starting %s: %w", u.Name, err)
		}
	}
	a.note(PhaseStarting, "")
	return errors.Join(a.setFront(d.Front), a.removeStale(d))
}

// removeStale removes what earlier deployments had files for and this one has not: they
// may be secrets, such as those of a controller that moved to another machine.
func (a *Agent) removeStale(d Deployment) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := filesOf(d)
	for len(a.stale) > 0 {
		if !wanted[a.stale[0]] {
			if err := os.Remove(a.path(a.stale[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		a.stale = a.stale[1:]
	}
	return nil
}

// filesOf are the paths of the files of a deployment.
func filesOf(d Deployment) map[string]bool {
	paths := map[string]bool{}
	for _, u := range d.Units {
		for path := range u.Files {
			paths[path] = true
		}
	}
	return paths
}

// start writes a unit's files and has it run with them.
func (a *Agent) start(ctx context.Context, u Unit) error {
	for _, name := range slices.Sorted(maps.Keys(u.Files)) {
		path := filepath.Join(a.opts.Dir, name)
		old, err := os.ReadFile(path)
		if err == nil && string(old) == u.Files[name] {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
			return err
		}
		if err := identity.WriteFile(path, []byte(u.Files[name])); err != nil {
			return err
		}
	}
	started, err := a.opts.Runner.Start(ctx, u, a.note)
	if err == nil && !started && len(u.Files) > 0 { // whether an earlier agent came to tell it is not known
		err = a.opts.Runner.Reload(ctx, u.Name)
	}
	return err
}

// look sees how the units do; lost says that one of them does not come back by itself.
func (a *Agent) look(ctx context.Context, d Deployment) (lost bool) {
	units := make([]UnitStatus, len(d.Units))
	phase, reason := PhaseReady, ""
	for i, u := range d.Units {
		s, worst, gone := a.lookAt(ctx, u)
		lost = lost || gone
		if units[i] = s; !s.Ready && phase == PhaseReady {
			phase, reason = worst, u.Name+": "+s.Reason
		}
	}
	if ctx.Err() != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.phase != phase {
		a.log.Info("phase", "phase", phase, "reason", reason)
	}
	a.units, a.phase, a.reason = units, phase, reason
	return lost
}

// lookAt sees how one unit does; phase is what the machine is in because of it.
func (a *Agent) lookAt(ctx context.Context, u Unit) (s UnitStatus, phase Phase, lost bool) {
	s.Name = u.Name
	seen, err := a.opts.Runner.Inspect(ctx, u, tailLines)
	if err != nil {
		s.Reason = err.Error()
		return s, PhaseFailed, seen.Lost
	}
	s.Running = seen.Running
	if s.Running {
		phase, s.Reason = isReady(ctx, u, seen.Lines)
	} else {
		phase, s.Reason = PhaseFailed, seen.Reason
	}
	if s.Ready = phase == PhaseReady; s.Ready {
		return s, phase, false
	}
	if seen.Restarts > 0 {
		s.Reason += fmt.Sprintf(", started again %d times", seen.Restarts)
	}
	if len(seen.Lines) > 0 {
		s.Reason = strings.TrimPrefix(s.Reason+": "+seen.Lines[len(seen.Lines)-1], ": ")
	}
	return s, phase, seen.Lost
}

// isReady says what a unit that runs is busy with, and why it is of no use yet, or what it
// remarks although it is ready.
func isReady(ctx context.Context, u Unit, lines []string) (phase Phase, reason string) {
	if u.Ready == "" {
		return PhaseReady, ""
	}
	remark, err := answers(ctx, u.Ready)
	if err != nil {
		return phaseOf(lines), err.Error()
	}
	return PhaseReady, remark
}

// gettingWeights are words of engines' logs while they download or load weights.
var gettingWeights = []string{"download", "fetching", "loading safetensors", "loading weights", "load weight", "loading model", "starting to load model"}

// phaseOf tells from what an engine wrote last what it is busy with.
func phaseOf(lines []string) Phase {
	for _, line := range slices.Backward(lines) {
		line = strings.ToLower(line)
		if slices.ContainsFunc(gettingWeights, func(words string) bool { return strings.Contains(line, words) }) {
			return PhaseWeights
		}
	}
	return PhaseStarting
}

// local asks this machine only, and anew each time: a unit may be another by then.
var local = &http.Client{
	Timeout:       readyTimeout,
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// answers is nil when a URL of this machine answers 200. The remark is what it says beyond
// "ok" in plain text, as our own programs do.
func answers(ctx context.Context, url string) (remark string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := local.Do(req)
	if err != nil {
		return "", errors.New("it does not answer yet")
	}
	defer resp.Body.Close()
	text := plainText(resp)
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(strings.TrimSuffix(fmt.Sprintf("it answers %d: %s", resp.StatusCode, text), ": "))
	}
	if remarks, ours := strings.CutPrefix(text, "ok"); ours {
		return strings.TrimPrefix(remarks, "; "), nil
	}
	return "", nil
}

// maxRemark bounds what is read of an answer: a few alerts.
const maxRemark = 2 << 10

// plainText is the lines of an answer in plain text as one; empty where it is anything else.
func plainText(resp *http.Response) string {
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "text/plain" {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxRemark))
	if err != nil {
		return ""
	}
	clean := strings.Map(func(r rune) rune {
		if r != '\n' && unicode.IsControl(r) { // it is shown on terminals
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(text), "?"))
	return strings.ReplaceAll(strings.TrimSpace(clean), "\n", "; ")
}

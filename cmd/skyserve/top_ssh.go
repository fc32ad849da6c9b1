package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"skyserve/internal/telemetry"
)

const (
	// sshTimeout bounds the wait for the first snapshot: the user may have to type a password
	// or touch a key.
	sshTimeout = time.Minute
	// sshSnapshotTimeout is the maximum delay of a later snapshot.
	sshSnapshotTimeout = 5 * time.Second
	// sshSnapshots is the number of snapshots of a session, which then restarts.
	sshSnapshots = 1_000_000
	// maxSSHBackoff is the maximum backoff between attempts: a host may block clients that
	// reconnect too often.
	maxSSHBackoff = 30 * time.Second
	// maxSSHStderr is how many bytes of the standard error of ssh and the remote command are kept.
	maxSSHStderr = 4 << 10
	// maxSSHLine bounds the size of a snapshot, as for a response of an admin API.
	maxSSHLine = 64 << 20
)

// isSSHHost reports whether ssh accepts text as a destination. A leading dash would make it an
// option.
func isSSHHost(text string) bool {
	odd := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
	return text != "" && !strings.HasPrefix(text, "-") && !strings.ContainsFunc(text, odd)
}

// remoteCommand returns the command line to run on the remote host: top, printing snapshots as JSON.
func (o *topOptions) remoteCommand() string {
	words := []string{"skyserve", "top"}
	if o.name != "" {
		words = append(words, o.name)
	}
	for _, a := range o.admins {
		words = append(words, "--admin", strings.TrimSpace(a))
	}
	words = append(words, "-o", "json", "-n", strconv.Itoa(sshSnapshots), "--interval", o.interval.String())
	for i, w := range words {
		words[i] = shellQuoted(w)
	}
	return strings.Join(words, " ")
}

// shellQuoted quotes a word for a shell.
func shellQuoted(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@,"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// sshSource is a tui.Fetcher over ssh: skyserve on the remote host prints snapshots, and Fetch
// returns the newest. If a session has ended, the next Fetch restarts it. sshSource is safe for
// concurrent use.
type sshSource struct {
	ctx      context.Context // of the sessions, which outlive a fetch
	stop     context.CancelFunc
	host     string
	command  string
	interval time.Duration // between two snapshots
	now      func() time.Time

	fetching  sync.Mutex // serialises Fetch
	session   *sshSession
	connected bool // some session has returned a snapshot: no more password prompts
	received  bool // the current session has returned a snapshot
	failure   error
	backoff   time.Duration // backoff after the failure
	retryAt   time.Time     // end of the backoff
}

// sshSession is one run of ssh.
type sshSession struct {
	snapshots chan *telemetry.Snapshot // the newest snapshot not fetched yet; closed at the end
	stderr    tailBuffer
	err       error // why it ended; set before snapshots is closed
}

// newSSHSource returns a source that starts its first session with the first Fetch. Sessions end
// with ctx or Close. The remote command prints a snapshot per interval.
func newSSHSource(ctx context.Context, host, command string, every time.Duration) *sshSource {
	ctx, stop := context.WithCancel(ctx)
	return &sshSource{ctx: ctx, stop: stop, host: host, command: command, interval: every, now: time.Now}
}

// String returns the remote host, for error messages.
func (s *sshSource) String() string { return "ssh " + s.host }

// Close ends the session.
func (s *sshSource) Close() error {
	s.stop()
	s.fetching.Lock()
	defer s.fetching.Unlock()
	if s.session != nil {
		for range s.session.snapshots { // wait until ssh has ended
		}
	}
	return nil
}

// Fetch waits for the next snapshot: up to sshTimeout for the first, interval + sshSnapshotTimeout for later ones.
func (s *sshSource) Fetch(ctx context.Context) (*telemetry.Snapshot, string, error) {
	s.fetching.Lock()
	defer s.fetching.Unlock()
	if s.session == nil && s.now().Before(s.retryAt) {
		return nil, "", s.failure
	}
	if s.session == nil {
		s.session, s.received = s.startSession(), false
	}
	timeout := s.interval + sshSnapshotTimeout
	if !s.connected {
		timeout = sshTimeout
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, "", ctx.Err()
	case <-timer.C:
		return nil, "", fmt.Errorf("%s: no snapshot within %s%s", s, timeout, s.session.stderr.lastLineSuffix())
	case snapshot, goesOn := <-s.session.snapshots:
		if !goesOn {
			s.sessionEnded()
			return nil, "", s.failure
		}
		s.connected, s.received = true, true
		return snapshot, s.String(), nil
	}
}

// sessionEnded handles the end of a session. A session that returned snapshots restarts at once, others
// with a growing backoff.
func (s *sshSource) sessionEnded() {
	s.failure, s.session = s.session.err, nil
	s.backoff = min(max(time.Second, 2*s.backoff), maxSSHBackoff)
	if s.received {
		s.backoff = 0
	}
	s.retryAt = s.now().Add(s.backoff)
}

// startSession starts ssh. Only the first session may prompt: later the dashboard uses the terminal.
func (s *sshSource) startSession() *sshSession {
	session := &sshSession{snapshots: make(chan *telemetry.Snapshot, 1)}
	args := []string{"-T", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"}
	if s.connected {
		args = append(args, "-o", "BatchMode=yes")
	}
	cmd := exec.CommandContext(s.ctx, "ssh", append(args, s.host, s.command)...)
	cmd.Stderr, cmd.WaitDelay = &session.stderr, time.Second
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		session.err = fmt.Errorf("%s: %w", s, err)
		close(session.snapshots)
		return session
	}
	go session.runCommand(s, cmd, out)
	return session
}

// runCommand reads snapshots until ssh ends.
func (e *sshSession) runCommand(s *sshSource, cmd *exec.Cmd, out io.ReadCloser) {
	defer close(e.snapshots)
	defer context.AfterFunc(s.ctx, func() { _ = out.Close() })() // a child of ssh may keep the other end open
	err := e.readOutput(out)
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended already; Wait returns the error
	}
	err = cmp.Or(err, cmd.Wait(), errors.New("the session ended"))
	e.err = fmt.Errorf("%s: %w%s", s, err, e.stderr.lastLineSuffix())
}

// readOutput reads snapshots, one per line.
func (e *sshSession) readOutput(out io.Reader) error {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxSSHLine)
	for lines.Scan() {
		snapshot := new(telemetry.Snapshot)
		if err := json.Unmarshal(lines.Bytes(), snapshot); err != nil {
			return fmt.Errorf("expected one snapshot per line, got %q: %w", lines.Bytes()[:min(len(lines.Bytes()), 40)], err)
		}
		select {
		case <-e.snapshots: // discard an older snapshot that was not fetched
		default:
		}
		e.snapshots <- snapshot
	}
	return lines.Err()
}

// tailBuffer keeps the end of what is written to it. It is safe for concurrent use.
type tailBuffer struct {
	mu   sync.Mutex
	text []byte
}

// Write appends p and discards all but the last maxSSHStderr bytes.
func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	b.text = b.text[max(0, len(b.text)-maxSSHStderr):]
	return len(p), nil
}

// lastLineSuffix returns the last line that is not a hint, as a suffix for an error message, without control
// characters.
func (b *tailBuffer) lastLineSuffix() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := ""
	for line := range strings.Lines(strings.ToValidUTF8(string(b.text), "?")) {
		words := strings.TrimSpace(strings.Map(spaceForControl, line))
		if words != "" && !strings.HasPrefix(words, "hint: ") {
			last = ": " + strings.TrimPrefix(words, "error: ")
		}
	}
	return last
}

// spaceForControl replaces a control character by a space.
func spaceForControl(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

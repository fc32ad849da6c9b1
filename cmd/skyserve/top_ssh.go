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
	// sshTimeout is how long a first snapshot may take: somebody may have to type a
	// password, or touch a key.
	sshTimeout = time.Minute
	// sshSilence is how late a later one may be.
	sshSilence = 5 * time.Second
	// sshCount is how many snapshots a session is asked for: it is begun again after that.
	sshCount = 1_000_000
	// sshPause is the longest pause before a host is tried again that gave nothing the
	// last times: it may shut out whoever knocks all the time.
	sshPause = 30 * time.Second
	// sshTalk is how much is kept of what ssh and the far end say.
	sshTalk = 4 << 10
	// sshLine bounds a snapshot, as an answer of an admin API is bounded.
	sshLine = 64 << 20
)

// isSSHHost tells what ssh takes for a destination. What begins with a dash it would
// take for an option.
func isSSHHost(text string) bool {
	odd := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
	return text != "" && !strings.HasPrefix(text, "-") && !strings.ContainsFunc(text, odd)
}

// remoteCommand is what runs at the far end: the same command, which prints snapshots.
func (o *topOptions) remoteCommand() string {
	words := []string{"skyserve", "top"}
	if o.name != "" {
		words = append(words, o.name)
	}
	for _, a := range o.admins {
		words = append(words, "--admin", strings.TrimSpace(a))
	}
	words = append(words, "-o", "json", "-n", strconv.Itoa(sshCount), "--interval", o.interval.String())
	for i, w := range words {
		words[i] = shellQuoted(w)
	}
	return strings.Join(words, " ")
}

// shellQuoted is a word as a shell reads it.
func shellQuoted(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@,"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// sshSource is a tui.Fetcher over ssh: skyserve at the far end prints snapshots, and
// this end shows the last that came. A session that ends is begun again by whoever
// fetches next. It is safe for concurrent use.
type sshSource struct {
	ctx     context.Context // of the sessions, which outlive a fetch
	stop    context.CancelFunc
	host    string
	command string
	every   time.Duration // between two snapshots
	now     func() time.Time

	fetching sync.Mutex // one waits for a snapshot at a time
	session  *sshSession
	before   bool // a session gave a snapshot: nobody is asked for a password any more
	fruitful bool // the present one did
	failure  error
	pause    time.Duration // after the failure
	again    time.Time     // when the pause is over
}

// sshSession is one run of ssh.
type sshSession struct {
	snapshots chan *telemetry.Snapshot // the newest that nobody fetched; closed at the end
	talk      tailBuffer
	err       error // why it ended; set before snapshots is closed
}

// newSSHSource begins nothing yet. Sessions end with ctx, or with Close. The command at
// the far end prints a snapshot every so often.
func newSSHSource(ctx context.Context, host, command string, every time.Duration) *sshSource {
	ctx, stop := context.WithCancel(ctx)
	return &sshSource{ctx: ctx, stop: stop, host: host, command: command, every: every, now: time.Now}
}

// String names the far end.
func (s *sshSource) String() string { return "ssh " + s.host }

// Close ends the session.
func (s *sshSource) Close() error {
	s.stop()
	s.fetching.Lock()
	defer s.fetching.Unlock()
	if s.session != nil {
		for range s.session.snapshots { // until ssh has ended
		}
	}
	return nil
}

// Fetch waits for the next snapshot: a moment, or a minute for the first.
func (s *sshSource) Fetch(ctx context.Context) (*telemetry.Snapshot, string, error) {
	s.fetching.Lock()
	defer s.fetching.Unlock()
	if s.session == nil && s.now().Before(s.again) {
		return nil, "", s.failure
	}
	if s.session == nil {
		s.session, s.fruitful = s.begin(), false
	}
	timeout := s.every + sshSilence
	if !s.before {
		timeout = sshTimeout
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, "", ctx.Err()
	case <-timer.C:
		return nil, "", fmt.Errorf("%s: no snapshot within %s%s", s, timeout, s.session.talk.said())
	case snapshot, goesOn := <-s.session.snapshots:
		if !goesOn {
			s.ended()
			return nil, "", s.failure
		}
		s.before, s.fruitful = true, true
		return snapshot, s.String(), nil
	}
}

// ended notes that the session has ended. One that gave something is begun again at
// once, the others after pauses that grow.
func (s *sshSource) ended() {
	s.failure, s.session = s.session.err, nil
	s.pause = min(max(time.Second, 2*s.pause), sshPause)
	if s.fruitful {
		s.pause = 0
	}
	s.again = s.now().Add(s.pause)
}

// begin starts ssh. Only the first time may it ask for something: later the dashboard
// has the terminal.
func (s *sshSource) begin() *sshSession {
	session := &sshSession{snapshots: make(chan *telemetry.Snapshot, 1)}
	args := []string{"-T", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"}
	if s.before {
		args = append(args, "-o", "BatchMode=yes")
	}
	cmd := exec.CommandContext(s.ctx, "ssh", append(args, s.host, s.command)...)
	cmd.Stderr, cmd.WaitDelay = &session.talk, time.Second
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		session.err = fmt.Errorf("%s: %w", s, err)
		close(session.snapshots)
		return session
	}
	go session.run(s, cmd, out)
	return session
}

// run passes snapshots on until ssh ends.
func (e *sshSession) run(s *sshSource, cmd *exec.Cmd, out io.ReadCloser) {
	defer close(e.snapshots)
	defer context.AfterFunc(s.ctx, func() { _ = out.Close() })() // what ssh started may hold the other end
	err := e.read(out)
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended already; Wait tells
	}
	err = cmp.Or(err, cmd.Wait(), errors.New("the session ended"))
	e.err = fmt.Errorf("%s: %w%s", s, err, e.talk.said())
}

// read reads snapshots, one a line.
func (e *sshSession) read(out io.Reader) error {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, sshLine)
	for lines.Scan() {
		snapshot := new(telemetry.Snapshot)
		if err := json.Unmarshal(lines.Bytes(), snapshot); err != nil {
			return fmt.Errorf("want a snapshot a line, found %q: %w", lines.Bytes()[:min(len(lines.Bytes()), 40)], err)
		}
		select {
		case <-e.snapshots: // nobody fetched it: this one is newer
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

// Write takes all.
func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	b.text = b.text[max(0, len(b.text)-sshTalk):]
	return len(p), nil
}

// said is the last line of it but for advice, for the end of a sentence; nothing that
// would move a cursor.
func (b *tailBuffer) said() string {
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

// spaceForControl is a character, or a space for one that would move a cursor.
func spaceForControl(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

package tui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// glass is the terminal's screen: it signals when a text appears.
type glass struct {
	mu    sync.Mutex
	text  bytes.Buffer
	waits []wait
}

type wait struct {
	text string
	seen chan struct{}
}

func (g *glass) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.text.Write(p)
	shown := ansi.Strip(g.text.String())
	kept := g.waits[:0]
	for _, w := range g.waits {
		if strings.Contains(shown, w.text) {
			close(w.seen)
			continue
		}
		kept = append(kept, w)
	}
	g.waits = kept
	return len(p), nil
}

// await returns a channel that closes when text has been drawn from now on.
func (g *glass) await(text string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.text.Reset()
	w := wait{text, make(chan struct{})}
	g.waits = append(g.waits, w)
	return w.seen
}

// start runs the dashboard on a terminal of 100x30 that consists of pipes.
func start(ctx context.Context, g *glass, keys io.Reader) <-chan error {
	done := make(chan error, 1)
	cfg := Config{
		Fetcher: &script{snapshot: normal()}, Interval: time.Hour, Theme: mustTheme(NewTheme(ThemePlain, false)),
		Now: func() time.Time { return noon },
	}
	go func() {
		done <- Run(ctx, cfg, keys, g, tea.WithWindowSize(120, 30), tea.WithEnvironment([]string{"TERM=xterm-256color"}))
	}()
	return done
}

func TestKeystrokesThroughAProgram(t *testing.T) {
	g := new(glass)
	keys, typing := io.Pipe()
	steps := []struct{ keys, shows string }{
		{"", "[1 overview]"}, {"2", "us-10"}, {"?", "Navigation"}, {"?", "us-10"}, {"/gcp\r", "filter:"}, // words whose cells all change
	}
	seen := g.await(steps[0].shows)
	done := start(context.Background(), g, keys)
	for i, s := range steps {
		if i > 0 {
			seen = g.await(s.shows)
			if _, err := io.WriteString(typing, s.keys); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-seen:
		case err := <-done:
			t.Fatalf("step %d: the dashboard ended: %v", i, err)
		}
	}
	if _, err := io.WriteString(typing, "q"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("quitting with q must not fail, got %v", err)
	}
}

func TestRunEndsWithContext(t *testing.T) {
	g := new(glass)
	keys, _ := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	seen := g.await("[1 overview]")
	done := start(ctx, g, keys)
	<-seen
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestInitFetchesAndDetectsBackground(t *testing.T) {
	for _, theme := range []string{ThemeAuto, ThemeDark} {
		f := &script{snapshot: normal()}
		m := New(context.Background(), Config{Fetcher: f, Interval: time.Second, Theme: mustTheme(NewTheme(theme, false))})
		batch, ok := m.Init()().(tea.BatchMsg)
		if want := map[string]int{ThemeAuto: 3, ThemeDark: 2}[theme]; !ok || len(batch) != want {
			t.Errorf("%s: got %d commands, want %d", theme, len(batch), want)
		}
		if f.calls != 0 {
			t.Error("creating a command must do no I/O")
		}
	}
}

func TestPipeIsNotATerminal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if IsTerminal(w) || Interactive(r, w, os.Getenv) || Columns(w) != 0 {
		t.Error("a pipe is not a terminal")
	}
}

func TestUTF8Locale(t *testing.T) {
	tests := []struct {
		env  map[string]string
		want bool
	}{
		{nil, false},
		{map[string]string{"LANG": "en_US.UTF-8"}, true},
		{map[string]string{"LANG": "C.utf8"}, true},
		{map[string]string{"LANG": "C"}, false},
		{map[string]string{"LC_ALL": "C", "LANG": "en_US.UTF-8"}, false},
		{map[string]string{"LC_ALL": "", "LC_CTYPE": "de_DE.UTF-8", "LANG": "C"}, true},
	}
	for _, tt := range tests {
		if got := UTF8Locale(func(k string) string { return tt.env[k] }); got != tt.want {
			t.Errorf("%v: got %t", tt.env, got)
		}
	}
}

func TestPrintFrameKeepsEscapesFromFiles(t *testing.T) {
	var out bytes.Buffer
	if err := PrintFrame(&out, Render(normal(), nil, 80, 0, mustTheme(NewTheme(ThemeDark, false)))); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), "us-10") {
		t.Errorf("got %q", out.String())
	}
}

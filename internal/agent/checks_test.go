package agent

import (
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// An agent checks its units several times a second: it opens no connection for each check.
func TestChecksKeepTheirConnection(t *testing.T) {
	var opened atomic.Int32
	unit := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\ndisk is slow\n"))
	}))
	unit.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	unit.Start()
	defer unit.Close()
	for range 20 {
		if remark, _, err := checkReadyURL(t.Context(), unit.URL, ""); err != nil || remark != "disk is slow" {
			t.Fatalf("got %q, %v", remark, err)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("20 checks opened %d connections, want 1", n)
	}
}

// Units of an operator's computer are checked often while the operator waits for them, and less often afterwards.
func TestReadyUnitsAreCheckedLessOften(t *testing.T) {
	for _, runner := range []string{"exec", RunnerInProcess} {
		c := Config{Service: "chat", Role: "replica", ID: "us-0", Owner: strings.Repeat("a", 52), Listen: "127.0.0.1:0", Dir: t.TempDir(), Publish: "console:/dev/null", Runner: runner}
		o, err := c.Options()
		if err != nil {
			t.Fatal(err)
		}
		if o.CheckInterval > 200*time.Millisecond || o.ReadyCheckInterval <= o.CheckInterval {
			t.Errorf("%s: checked every %v, when ready every %v", runner, o.CheckInterval, o.ReadyCheckInterval)
		}
	}
}

// The last lines of a file are those of the whole text, wherever its parts begin that are read.
func TestLastLinesOfFile(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	path := filepath.Join(t.TempDir(), "unit.log")
	for range 300 {
		var text strings.Builder
		for range random.IntN(200) {
			text.WriteString(strings.Repeat("x", random.IntN(200)))
			text.WriteString(strings.Repeat("\n", 1+random.IntN(2)*random.IntN(3)))
		}
		if random.IntN(2) == 0 {
			text.WriteString("unfinished")
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		n := 1 + random.IntN(250)
		got, err := readLastLines(path, n)
		if want := lastLines(text.String(), n); err != nil || !slices.Equal(got, want) {
			t.Fatalf("the last %d lines of %d bytes: got %q, want %q, %v", n, text.Len(), got, want, err)
		}
	}
}

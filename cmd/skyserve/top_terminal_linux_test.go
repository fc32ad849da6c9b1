package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal on which a command runs.
type terminal struct {
	t     *testing.T
	side  *os.File // the user's side
	drawn bytes.Buffer
	more  chan []byte
}

// openTerminal runs the command on its own terminal of a size.
func openTerminal(t *testing.T, columns, rows uint16, cmd *exec.Cmd) *terminal {
	t.Helper()
	side, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { side.Close() })
	number, err := unix.IoctlGetInt(int(side.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(side.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tt := &terminal{t: t, side: side, more: make(chan []byte)}
	tt.resize(columns, rows)
	tty, err := os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(number)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // usually it has exited already
	tty.Close()
	go tt.read()
	return tt
}

// read forwards the drawn output until the command closes its side.
func (tt *terminal) read() {
	defer close(tt.more)
	for {
		p := make([]byte, 4096)
		n, err := tt.side.Read(p)
		if n > 0 {
			tt.more <- p[:n]
		}
		if err != nil {
			return
		}
	}
}

func (tt *terminal) resize(columns, rows uint16) {
	tt.t.Helper()
	if err := unix.IoctlSetWinsize(int(tt.side.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		tt.t.Fatal(err)
	}
}

// press types keys and waits until a text has been drawn since. Unchanged cells are not drawn again,
// so the text must consist of changed cells.
func (tt *terminal) press(keys, shows string) {
	tt.t.Helper()
	tt.drawn.Reset()
	if _, err := io.WriteString(tt.side, keys); err != nil {
		tt.t.Fatal(err)
	}
	tt.await(shows)
}

func (tt *terminal) await(shows string) {
	tt.t.Helper()
	timeout := time.After(20 * time.Second)
	for !strings.Contains(ansi.Strip(tt.drawn.String()), shows) {
		select {
		case p, open := <-tt.more:
			if !open {
				tt.t.Fatalf("the command ended before it drew %q; it drew %q", shows, tt.drawn.String())
			}
			tt.drawn.Write(p)
		case <-timeout:
			tt.t.Fatalf("the command did not draw %q; it drew %q", shows, tt.drawn.String())
		}
	}
}

// rest returns the output until the command ends.
func (tt *terminal) rest() string {
	tt.drawn.Reset()
	for p := range tt.more {
		tt.drawn.Write(p)
	}
	return tt.drawn.String()
}

// skyserveCommand returns the command as a separate process.
func skyserveCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "skyserve") // named skyserve, the test binary is the command
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link, args...)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "LC_ALL=C.UTF-8", "SKYSERVE_HOME="+t.TempDir())
	return cmd
}

func TestTopOnTerminal(t *testing.T) {
	cmd := skyserveCommand(t, "top", "--admin", newTopAdmin(t).URL, "--theme", "dark", "--interval", "1h")
	tt := openTerminal(t, 100, 30, cmd)
	tt.await("local/us")
	tt.press("2", "us-0")
	tt.press("?", "Actions (y confirms")
	tt.press("\x1b", "us-0")
	tt.press("/!us-0\r", "filter: !us-0 (0 of 1)")
	tt.press("\x1b", "us-0")
	tt.press("8", "No events yet")
	tt.press(":donations\r", "No donated replicas")
	tt.press("\x1b[<0;4;2M\x1b[<0;4;2m", "ALERTS") // a click on the first tab
	tt.drawn.Reset()
	tt.resize(60, 15)
	tt.await("1 over")
	tt.press(":dance\r", `unknown command "dance"`)
	tt.press("\x1b", "? help")
	if _, err := io.WriteString(tt.side, "q"); err != nil {
		t.Fatal(err)
	}
	last := tt.rest()
	if err := cmd.Wait(); err != nil {
		t.Errorf("quitting failed: %v", err)
	}
	for _, off := range []string{"\x1b[?1049l", "\x1b[?25h"} { // the former screen, and its cursor
		if !strings.Contains(last, off) {
			t.Errorf("the terminal is not restored with %q: %q", off, last)
		}
	}
}

// A serial line, or a terminal inside a script, may have no size.
func TestTopOnTerminalWithoutSize(t *testing.T) {
	cmd := skyserveCommand(t, "top", "--admin", newTopAdmin(t).URL)
	tt := openTerminal(t, 0, 0, cmd)
	tt.await("local/us")
	if _, err := io.WriteString(tt.side, "q"); err != nil {
		t.Fatal(err)
	}
	tt.rest()
	if err := cmd.Wait(); err != nil {
		t.Errorf("quitting failed: %v", err)
	}
}

func TestTopLeavesTheTerminalOnCtrlC(t *testing.T) {
	cmd := skyserveCommand(t, "top", "--admin", "http://127.0.0.1:1")
	tt := openTerminal(t, 80, 24, cmd)
	tt.await("connecting to http://127.0.0.1:1")
	if _, err := io.WriteString(tt.side, "\x03"); err != nil {
		t.Fatal(err)
	}
	if last := tt.rest(); !strings.Contains(last, "\x1b[?1049l") {
		t.Errorf("the terminal is not restored: %q", last)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("quitting failed: %v", err)
	}
}

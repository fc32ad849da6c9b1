package main

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"skyserve/internal/testkit"
	"skyserve/provision/local"
)

// envBrokenCommand is the environment variable with the name of a command that fails at once.
const envBrokenCommand = "SKYSERVE_TEST_BROKEN"

// Environment variables of Go's garbage collector and scheduler.
const (
	envGOGC       = "GOGC"
	envGOMAXPROCS = "GOMAXPROCS"
)

// TestMain makes this test binary the command skyserve inside scripts.
func TestMain(m *testing.M) {
	testscript.Main(patient{m}, map[string]func(){
		"skyserve": func() {
			if fails := os.Getenv(envBrokenCommand); fails != "" && len(os.Args) > 1 && os.Args[1] == fails {
				fmt.Fprintf(os.Stderr, "%s is broken\n", fails)
				os.Exit(exitFailed)
			}
			breakNewVersion(os.Args[1:])
			awaitEngineStart(os.Args[1:])
			os.Exit(run(os.Args[1:]))
		},
		"post": func() { os.Exit(post(os.Args[1:])) },
	})
}

// brokenVersion is the end of a copy of this binary that stands for a version whose controllers never become healthy:
// the machine process occupies the address in envOccupied, on which its controller would listen.
const (
	brokenVersion = "a broken version"
	envOccupied   = "SKYSERVE_TEST_OCCUPIED"
)

// occupied is the listener on the address in envOccupied. It is referenced, because one that is collected is closed.
var occupied net.Listener

// breakNewVersion breaks the process of a machine that runs a broken version.
func breakNewVersion(args []string) {
	address := os.Getenv(envOccupied)
	if address == "" || len(args) == 0 || args[0] != "node" {
		return
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	end, err := endOf(self, len(brokenVersion))
	if err != nil {
		panic(err)
	}
	for begin := time.Now(); end == brokenVersion && occupied == nil && time.Since(begin) < 5*time.Second; time.Sleep(10 * time.Millisecond) {
		occupied, _ = net.Listen("tcp", address) // the process that is replaced may still use it; on other machines it is in use
	}
}

// endOf returns the last bytes of a file.
func endOf(file string, length int) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := f.Seek(int64(-length), io.SeekEnd); err != nil {
		return "", err
	}
	end, err := io.ReadAll(f)
	return string(end), err
}

// patient runs more parallel tests than there are processors, unless -parallel is set: parallel
// tests mostly wait for emulated machines and for processes.
type patient struct{ m *testing.M }

// relaxTimers lets the timers of this process and of those that it starts be late, where the system can do that.
var relaxTimers = func() error { return nil }

func (p patient) Run() int {
	const atOnce = 10
	testkit.CollectRarely()
	// For the processes that tests start: most of them live for milliseconds, and the others mostly wait.
	for name, value := range map[string]string{envGOGC: "400", envGOMAXPROCS: "1"} {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	// Tests in this process must not read the configuration file of whoever runs them.
	if err := os.Setenv(envXDGConfigHome, "/nonexistent"); err != nil {
		panic(err)
	}
	if err := relaxTimers(); err != nil {
		panic(err)
	}
	flag.Parse()
	stated := false
	flag.Visit(func(f *flag.Flag) { stated = stated || f.Name == "test.parallel" })
	if !stated {
		if err := flag.Set("test.parallel", strconv.Itoa(max(atOnce, runtime.GOMAXPROCS(0)))); err != nil {
			panic(err) // the flag does not exist
		}
	}
	code := p.m.Run()
	if programsDir != "" {
		if err := os.RemoveAll(programsDir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return max(code, 1)
		}
	}
	return code
}

// longScripts are the scripts that take more than half a minute, mostly waiting, each with a test of its own. Go starts
// the parallel tests of a package before the parallel subtests of all tests: as subtests of TestScripts they would start
// last, and run alone at the end.
var longScripts = map[string]func(*testing.T){
	"control_plane":         TestControlPlaneScript,
	"control_plane_renamed": TestLongControlPlaneRenamedScript,
	"control_plane_resized": TestLongControlPlaneResizedScript,
	"control_plane_updated": TestLongControlPlaneUpdatedScript,
	"scale_to_zero":         TestScaleToZeroScript,
	"strategy":              TestStrategyScript,
}

func TestControlPlaneScript(t *testing.T) { runLongScript(t, "control_plane") }
func TestLongControlPlaneRenamedScript(t *testing.T) {
	needsLongFlag(t)
	runLongScript(t, "control_plane_renamed")
}

func TestLongControlPlaneResizedScript(t *testing.T) {
	needsLongFlag(t)
	runLongScript(t, "control_plane_resized")
}

func TestLongControlPlaneUpdatedScript(t *testing.T) {
	needsLongFlag(t)
	runLongScript(t, "control_plane_updated")
}
func TestScaleToZeroScript(t *testing.T) { runLongScript(t, "scale_to_zero") }
func TestStrategyScript(t *testing.T)    { runLongScript(t, "strategy") }

// long runs the tests that take a minute or more of waiting, or many seconds of both processors, as .ci/nightly does (make long):
// updates and losses of machines in emulated clouds, mostly of whole control planes with three controllers.
var long = flag.Bool("long", false, "run the tests that take minutes, too")

// needsLongFlag skips a test without -long.
func needsLongFlag(t *testing.T) {
	t.Helper()
	if !strings.HasPrefix(t.Name(), "TestLong") {
		t.Fatal("make long runs tests whose names begin with TestLong")
	}
	if !*long {
		t.Skip("takes minutes: make long runs it")
	}
}

// runLongScript runs a script in the test itself, not in a subtest.
func runLongScript(t *testing.T, name string) {
	t.Parallel()
	params := scriptParams(filepath.Join("testdata", "script", name+".txtar"))
	params.Deadline, _ = t.Deadline()
	testscript.RunT(withoutSubtests{t}, params)
}

// withoutSubtests is a test of one script.
type withoutSubtests struct{ *testing.T }

func (withoutSubtests) Parallel()                              {} // its test is parallel
func (t withoutSubtests) Run(_ string, run func(testscript.T)) { run(t) }
func (withoutSubtests) Verbose() bool                          { return testing.Verbose() }

// TestScripts runs every script of testdata/script, but longScripts, against the real command.
func TestScripts(t *testing.T) {
	t.Parallel() // it waits for others, and others for it
	files, err := filepath.Glob(filepath.Join("testdata", "script", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	all := len(files)
	files = slices.DeleteFunc(files, func(file string) bool {
		return longScripts[strings.TrimSuffix(filepath.Base(file), ".txtar")] != nil
	})
	if all-len(files) != len(longScripts) || len(files) == 0 {
		t.Fatalf("%d of %d scripts are long, want %d", all-len(files), all, len(longScripts))
	}
	testscript.Run(t, scriptParams(files...))
}

// scriptParams returns how scripts are run.
func scriptParams(files ...string) testscript.Params {
	return testscript.Params{
		Files:               files,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition: func(name string) (bool, error) {
			if name == "race" {
				return testkit.RaceDetector, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"until": until},
		Setup: func(env *testscript.Env) error {
			env.Setenv("SKYSERVE_HOME", filepath.Join(env.WorkDir, ".skyserve"))
			env.Setenv(envGOGC, os.Getenv(envGOGC))
			env.Setenv(envGOMAXPROCS, os.Getenv(envGOMAXPROCS))
			if err := setPorts(env); err != nil {
				return err
			}
			return installByLink(filepath.Join(env.WorkDir, ".skyserve")) // last: setPorts reads all files
		},
	}
}

// installByLink puts a hard link to this binary where the first `up` of a script would write a copy: copying and syncing
// the test binary takes longer than the rest of a short script. On another file system, `up` writes the copy.
func installByLink(home string) error {
	self, build, err := local.Executable()
	if err != nil {
		return err
	}
	dir := filepath.Join(home, "bin")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(self, 0o700); err != nil { // the mode of the copy
		return err
	}
	if err := os.Link(self, filepath.Join(dir, "skyserve-"+build)); err != nil {
		return os.Remove(dir)
	}
	return nil
}

// until implements the line "until PATTERN COMMAND...": it repeats the command until a line of its
// output matches.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN COMMAND...")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for timeout := time.After(time.Minute); ; {
		start := time.Now()
		failed := ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if failed == nil && pattern.MatchString(out) {
			return
		}
		select {
		case <-time.After(pauseAfter(time.Since(start))):
		case <-timeout:
			ts.Fatalf("timeout waiting for %q (%v) in\n%s", args[0], failed, out)
		}
	}
}

// portNames are the variables that setPorts sets.
var portNames = regexp.MustCompile(`\$(PORT2?|NAMES|ADMIN|ENGINE|CONTROLLER|OTHER)\b`)

// setPorts assigns ports to a script that no other test uses, as variables in its lines and files:
// PORT for local.port, the first balancer's port; PORT2 for the second balancer's, and others derived
// from PORT; NAMES for a name server; OTHER for another program or the local.port of a second service, whose machines of a
// kind follow the first five of the first service.
func setPorts(env *testscript.Env) error {
	base := testkit.LocalPort()
	env.Defer(func() { testkit.ReleaseLocalPort(base) })
	for name, port := range map[string]int{
		"PORT": base, "PORT2": base + 1, "NAMES": base + 19, "ADMIN": base + 100, "ENGINE": base + 200, "CONTROLLER": base + 310,
		"OTHER": base + 5,
	} {
		env.Setenv(name, strconv.Itoa(port))
	}
	return filepath.WalkDir(env.WorkDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !portNames.Match(text) {
			return err
		}
		text = portNames.ReplaceAllFunc(text, func(name []byte) []byte { return []byte(env.Getenv(string(name[1:]))) })
		return os.WriteFile(path, text, 0o600)
	})
}

package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"skyserve/internal/testkit"
)

// TestMain makes this test binary answer as the command skyserve inside scripts.
func TestMain(m *testing.M) {
	testscript.Main(patient{m}, map[string]func(){
		"skyserve": func() { os.Exit(run(os.Args[1:])) },
	})
}

// patient runs more tests at once than there are processors, unless -parallel says how
// many: those that may run beside others mostly wait, for machines of emulated clouds and
// for processes.
type patient struct{ m *testing.M }

func (p patient) Run() int {
	const atOnce = 4
	flag.Parse()
	stated := false
	flag.Visit(func(f *flag.Flag) { stated = stated || f.Name == "test.parallel" })
	if !stated {
		if err := flag.Set("test.parallel", strconv.Itoa(max(atOnce, runtime.GOMAXPROCS(0)))); err != nil {
			panic(err) // there is no such flag any more
		}
	}
	return p.m.Run()
}

// TestScripts runs every script of testdata/script against the real command.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition: func(name string) (bool, error) {
			if name == "race" {
				return testkit.RaceDetector, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("SKYSERVE_HOME", filepath.Join(env.WorkDir, ".skyserve"))
			return nil
		},
	})
}

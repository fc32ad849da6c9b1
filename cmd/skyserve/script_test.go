package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain makes this test binary answer as the command skyserve inside scripts.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"skyserve": func() { os.Exit(run(os.Args[1:])) },
	})
}

// TestScripts runs every script of testdata/script against the real command.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("SKYSERVE_HOME", filepath.Join(env.WorkDir, ".skyserve"))
			return nil
		},
	})
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skyserve/internal/atomicfile"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision/local"
	"skyserve/provision/record"
)

// Exit codes, the same for every verb.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitPartial     = 3
	exitCredentials = 4
	exitChanges     = 10
	exitInterrupted = 130
)

// exitError is an error with its exit code and an optional hint: one line on what to do next.
type exitError struct {
	code int
	err  error
	hint string
	// noService is set if the command found no service: its hint then also names the way to a balancer without one.
	noService bool
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usage marks err as an error of usage or configuration (exit 2).
func usage(err error, hint string) error { return &exitError{code: exitUsage, err: err, hint: hint} }

// failed marks err as a failure (exit 1) with a hint.
func failed(err error, hint string) error { return &exitError{code: exitFailed, err: err, hint: hint} }

// notFound marks err as the error of a name or id of an object that does not exist (exit 1), such as a service, a
// replica, a request or a batch: objects come and go. A value that service.yaml or the command defines, such as a
// region, a model or a kind of event, is a usage error (exit 2).
func notFound(err error, hint string) error { return failed(err, hint) }

// run executes the command line and returns the process's exit code.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.SetOutput(printable.NewWriter(os.Stderr)) // libraries use the standard logger
	return execute(ctx, args, os.Stdout, os.Stderr)
}

// execute executes the command line. It removes escape sequences from everything that it
// writes to stdout and stderr (terminal.go).
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out, errOut := printable.NewWriter(newPainter(stdout)), printable.NewWriter(newPainter(stderr))
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(interruptibleInput{ctx, os.Stdin})
	root.SetOut(out)
	root.SetErr(errOut)
	err := checkCommand(root, args)
	if err == nil {
		var cmd *cobra.Command
		cmd, err = root.ExecuteContextC(ctx)
		hintStandalone(cmd, err)
	}
	code := report(ctx, errOut, cmp.Or(err, out.Flush()))
	reportRecording(errOut)
	_ = errOut.Flush() // an error could be reported only to the same stream
	return code
}

// reportRecording prints where the calls to the clouds were recorded, if they were.
func reportRecording(w io.Writer) {
	path, calls, err := record.Finish()
	if path != "" {
		fmt.Fprintf(w, "recorded %s in %s\n", printable.Count(calls, "cloud call"), path)
	}
	if err != nil {
		printMessage(w, labelWarning, "the recording is incomplete: %v", err)
	}
}

// checkCommand returns an error for a command line that names no command, with the most similar ones.
func checkCommand(root *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return nil // cobra adds this command when it runs
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	if len(args) > 0 && args[0] == "help" { // cobra's own command accepts any name
		args = args[1:]
	}
	parent, rest, err := root.Find(args)
	at := slices.IndexFunc(rest, func(a string) bool { return !strings.HasPrefix(a, "-") })
	if err == nil && (parent == root || parent.Runnable() || at < 0) {
		return nil
	}
	return unknownCommand(parent, rest[at])
}

// checkExclusive rejects a flag that is set together with one of the others.
func checkExclusive(cmd *cobra.Command, name string, others ...string) error {
	for _, other := range others {
		if cmd.Flags().Changed(name) && cmd.Flags().Changed(other) {
			return usage(fmt.Errorf("--%s: cannot be combined with --%s", name, other), "")
		}
	}
	return nil
}

// checkRequires rejects flags that have no effect without the flag required.
func checkRequires(cmd *cobra.Command, required string, names ...string) error {
	for _, name := range names {
		if cmd.Flags().Changed(name) && !cmd.Flags().Changed(required) {
			return usage(fmt.Errorf("--%s: requires --%s", name, required), "")
		}
	}
	return nil
}

// unknownCommand returns the error of a name that is no command of parent, with the most similar ones.
func unknownCommand(parent *cobra.Command, name string) error {
	hint := "run '" + parent.CommandPath() + " --help' to list the commands"
	parent.SuggestionsMinimumDistance = min(2, len(name)/2) // any two words of three letters are similar at a distance of 2
	if similar := suggestions(parent, name); len(similar) > 0 {
		hint = "did you mean '" + strings.Join(similar, "' or '") + "'?"
	}
	return usage(fmt.Errorf("unknown command %q", name), hint)
}

// suggestions returns the commands that other tools call name, else those with a similar name.
func suggestions(parent *cobra.Command, name string) []string {
	if parent.Name() == "replica" && slices.Contains([]string{"undrain", "uncordon", "resume"}, name) {
		return []string{"drain ID --undo"}
	}
	var same []string
	for _, c := range parent.Commands() {
		if slices.Contains(c.SuggestFor, name) {
			same = append(same, c.Name())
		}
	}
	if len(same) > 0 {
		return same
	}
	return parent.SuggestionsFor(name)
}

// didYouMean returns a hint with the value that is most similar to name; empty if none is.
func didYouMean(name string, values []string) string {
	if near := service.Nearest(name, values); near != "" {
		return "did you mean '" + near + "'?"
	}
	return ""
}

// flagError returns the error of an unknown flag, with the most similar flag as the hint, or of an invalid value.
func flagError(c *cobra.Command, err error) error {
	hint := "run '" + c.CommandPath() + " --help' to list its flags"
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		argument := strings.ToUpper(unknown.GetSpecifiedName())
		if name := service.Nearest(strings.ReplaceAll(unknown.GetSpecifiedName(), "_", "-"), names); takesArgument(c, argument) {
			hint = argument + " is an argument: '" + c.CommandPath() + " " + argument + "'"
		} else if name != "" {
			hint = "did you mean '--" + name + "'?"
		}
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		var number *strconv.NumError
		kind := invalid.GetFlag().Value.Type()
		if form := flagForms[kind]; form != "" && (kind == "duration" || errors.As(err, &number)) {
			err = fmt.Errorf("--%s: must be %s, got %q", invalid.GetFlag().Name, form, invalid.GetValue())
		}
	}
	return usage(err, hint)
}

// takesArgument reports whether a command has an argument of this name, which is in capitals.
func takesArgument(c *cobra.Command, name string) bool {
	_, arguments, _ := strings.Cut(c.Use, " ")
	return slices.Contains(strings.FieldsFunc(arguments, func(r rune) bool { return strings.ContainsRune(" []|.", r) }), name)
}

// flagForms describes the values of flags by the flag's type. The errors of other types contain a description.
var flagForms = map[string]string{
	"bool": "true or false", "duration": "a duration such as 500ms, 30s or 2h", "float64": "a number", "int": "an integer",
	"int64": "an integer", "uint": "a whole number", "uint64": "a whole number",
}

// report prints err, with its hint, and chooses the exit code.
func report(ctx context.Context, w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	var ee *exitError
	if errors.As(err, &ee) {
		if ee.err != nil && ee.Error() != "" {
			printMessage(w, labelError, "%s", ee.Error())
		}
		if ee.hint != "" {
			printMessage(w, labelHint, "%s", ee.hint)
		}
		return ee.code
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		fmt.Fprintln(w, "interrupted")
		return exitInterrupted
	}
	printMessage(w, labelError, "%s", err)
	if home := (*local.HomeError)(nil); errors.As(err, &home) {
		printMessage(w, labelHint, "%s", home.Hint())
	}
	var damaged *atomicfile.DamagedError
	if errors.As(err, &damaged) {
		name, then := filepath.Base(damaged.Path), "'skyserve up' then writes it again"
		if name == decisionsName {
			then = "drained and donated replicas then serve again"
		}
		printMessage(w, labelHint, "restore %s from a copy of the file, or move it away: %s", name, then)
	}
	return exitFailed
}

// newRoot builds the command tree.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "skyserve",
		Short: "Serve large language models across regions and clouds",
		Long: `skyserve deploys LLM replicas in several regions and clouds, balances their traffic,
shows their state, and plans the capacity for the load that it forecasts.
docs/glossary.md explains the words of the commands and of their output.`,
		Example: `  skyserve init > service.yaml
  skyserve up service.yaml
  skyserve top
  skyserve plan
  skyserve down chat`,
		Version:       ownVersion().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		// A background process takes its local object's lock before it does anything else.
		// The operating system releases the lock when the process ends.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			path := os.Getenv(local.EnvObject)
			var err error
			if path == "" {
				err = applySettings(cmd) // may set --no-color
			}
			if plain, _ := cmd.Flags().GetBool("no-color"); plain {
				disableColour(cmd.OutOrStdout())
				disableColour(cmd.ErrOrStderr())
			}
			if err != nil {
				return err
			}
			if err = record.Start(cmd.CommandPath(), ownVersion().Version); err != nil {
				return usage(err, "")
			}
			if path != "" {
				_, err = local.HoldObject(path)
			}
			return err
		},
	}
	root.PersistentFlags().Bool("no-color", false, "disable colour (same as setting NO_COLOR)")
	root.Flags().Bool("version", false, "print the version, as 'skyserve version' does")
	root.SetFlagErrorFunc(flagError)
	// Commands in the order of a service's life cycle. Each is in the file of its name, restore in backup.go.
	root.AddCommand(
		newInitCmd(),
		newValidateCmd(),
		newConfigCmd(),
		newSchemaCmd(),
		newUpCmd(),
		newDownCmd(),
		newGCCmd(),
		newDoctorCmd(),
		newOffersCmd(),
		newStatusCmd(),
		newConnectCmd(),
		newLogsCmd(),
		newLbCmd(),
		newControllerCmd(),
		newNameServerCmd(),
		newEngineCmd(),
		newNodeCmd(),
		newTopCmd(),
		newExplainCmd(),
		newUsageCmd(),
		newEventsCmd(),
		newBackupCmd(),
		newRestoreCmd(),
		newPlanCmd(),
		newReplicaCmd(),
		newForecastCmd(),
		newSimCmd(),
		newLoadCmd(),
		newBatchCmd(),
		newVersionCmd(),
	)
	registerCompletions(root)
	acceptFormerFlags(root)
	return root
}

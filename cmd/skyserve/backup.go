package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/printable"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// hintStoreDir follows an error of --dir.
const hintStoreDir = "pass the directory that contains jetstream, such as /var/lib/skyserve/controller/store on the machine of a controller"

// backupOptions are the flags of `skyserve backup`.
type backupOptions struct {
	name   string
	file   string
	dir    string
	admins []string
	force  bool // replaces FILE
	output outputFlags
}

func newBackupCmd() *cobra.Command {
	var o backupOptions
	cmd := &cobra.Command{
		Use:        "backup FILE",
		SuggestFor: []string{"export", "dump"},
		Short:      "Back up the store of a service to a file",
		Long: `Back up the store of a service to one compressed file: history, events, plans,
drained and donated replicas, usage, batches and their files. The service keeps running.
The file contains prompts and responses of batches, and no certificates, keys or secrets of
the service. Its mode is 0600. An existing FILE is replaced only with --force.
'skyserve restore' restores it. FILE may be an object in a bucket, s3://... or gs://...,
with the credentials of the environment; an existing object is replaced.

With --dir, the command reads a stopped store from its directory, for example on the
last remaining disk of a cluster. On a machine without the service's state, --dir and
--admin require --service.`,
		Example: `  skyserve backup chat.backup
  skyserve backup s3://backups/chat/chat.backup
  skyserve backup chat.backup --service chat --dir /mnt/skyserve/controller/store`,
		Args: oneArgument("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := fileArgument(cmd, &o.name, &o.file, args); err != nil {
				return err
			}
			return withCredentialsHint(runBackup(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	registerService(cmd, &o.name)
	flags := cmd.Flags()
	flags.StringVar(&o.dir, "dir", "", "read the stopped store in `DIRECTORY` instead of the running one")
	flags.BoolVar(&o.force, "force", false, "replace an existing FILE")
	flags.StringSliceVar(&o.admins, "admin", nil, "admin `URL` of a balancer, repeatable or comma-separated (default: the running service's)")
	o.output.registerResult(cmd)
	return cmd
}

func runBackup(ctx context.Context, o *backupOptions, out, errOut io.Writer) error {
	format, err := o.output.parse()
	if err != nil {
		return err
	}
	if o.dir != "" && len(o.admins) > 0 {
		return usage(errors.New("--dir and --admin exclude each other"), "")
	}
	if o.dir != "" {
		if _, err := os.Stat(filepath.Join(o.dir, "jetstream")); err != nil {
			return usage(fmt.Errorf("--dir: %s is not the directory of a store: %w", o.dir, err), hintStoreDir)
		}
	}
	var admins []*telemetry.Client
	if o.dir == "" {
		if _, admins, err = findAdmins(ctx, o.name, o.admins); err != nil {
			return err
		}
	}
	file, err := openBackupFile(ctx, o.name, o.file)
	if err != nil {
		return err
	}
	if file, inFolder := file.(localBackup); inFolder {
		if err := file.checkTarget(o.force); err != nil {
			return err
		}
	}
	sources, hint := []func(io.Writer) error{}, "nothing was written; 'skyserve status' shows the state of the store"
	var fetching error // of the last balancer
	for _, admin := range respondingFirst(ctx, admins) {
		sources = append(sources, func(w io.Writer) error {
			fetching = admin.Backup(ctx, w)
			return fetching
		})
	}
	if o.dir != "" { // no balancer shows a stopped store
		sources = append(sources, func(w io.Writer) error { return store.BackupDir(ctx, o.dir, w, o.name, ownVersion().Version) })
		hint = "nothing was written"
	}
	b, size, err := writeBackup(ctx, file, sources, errOut)
	if err != nil {
		if admin := adminHint(o.admins, fetching); admin != "" {
			hint = "nothing was written; " + admin
		}
		return failed(fmt.Errorf("backing up %s: %w", o.name, err), hint)
	}
	if err := reportBackup(out, format, o.file, b, size, "backed up %s to %s: %s, %s in the store, %s in the file\n"); err != nil || format.isResult() {
		return err
	}
	return printRestoreStep(out, o)
}

// withCredentialsHint returns err, if the cloud of a bucket rejects the credentials, with the exit code and the next step
// for that.
func withCredentialsHint(err error) error {
	var rejected *provision.CredentialsError
	if errors.As(err, &rejected) {
		return &exitError{code: exitCredentials, err: err, hint: rejected.Hint}
	}
	return err
}

// writeBackup writes the backup of the first source that succeeds, and returns its size in bytes. It ends at once if the
// file's cloud rejects the credentials: that is the same for all sources.
func writeBackup(ctx context.Context, file backupFile, sources []func(io.Writer) error, errOut io.Writer) (b telemetry.Backup, size int64, err error) {
	var failures []error
	for _, source := range sources {
		b, size, err = file.write(ctx, source)
		if errors.As(err, new(*store.LeftoverPartsError)) {
			printMessage(errOut, labelWarning, "%v", err)
			err = nil
		}
		if err == nil {
			return b, size, nil
		}
		failures = append(failures, err)
		if errors.As(err, new(*provision.CredentialsError)) {
			break
		}
	}
	return b, 0, errors.Join(failures...)
}

// printRestoreStep prints how the backup is restored.
func printRestoreStep(out io.Writer, o *backupOptions) error {
	before := ""
	if o.dir != "" { // its store does not run
		before = "start the service with 'skyserve up', then "
	}
	_, err := fmt.Fprintf(out, "to restore it, %srun: skyserve restore %s --service %s\n", before, printable.Line(o.file), printable.Line(o.name))
	return err
}

// fileArgument sets the FILE of backup and restore, and the service if it is named by an argument before FILE.
func fileArgument(cmd *cobra.Command, name, file *string, args []string) error {
	*file = args[len(args)-1]
	if len(args) == 2 { // the form before --service
		warnServiceArgument(cmd.ErrOrStderr(), cmd, args[0])
		if err := setService(name, args[:1], "NAME"); err != nil {
			return err
		}
	}
	if *name != "" {
		return nil
	}
	svc, err := findService("")
	if err != nil {
		for _, flag := range []string{"dir", "admin"} { // they need no state on this machine
			if cmd.Flags().Changed(flag) {
				return usage(fmt.Errorf("--%s: requires --service NAME: %w", flag, err), "")
			}
		}
		return err
	}
	*name = svc.Name()
	return nil
}

// backupReport is the JSON output of backup and restore.
type backupReport struct {
	telemetry.Backup
	File      string `json:"file"`
	FileBytes int64  `json:"file_bytes"`
}

// reportBackup prints the description of a backup, whose file has a size in bytes.
func reportBackup(out io.Writer, format outputFormat, file string, b telemetry.Backup, size int64, text string) error {
	if format.isResult() {
		return format.writeResult(out, file, backupReport{b, file, size})
	}
	_, err := fmt.Fprintf(out, text, b.Service, file, printable.Count(b.Messages, "entry"), printable.Bytes(b.Bytes), printable.Bytes(uint64(size)))
	return err
}

// restoreOptions are the flags of `skyserve restore`.
type restoreOptions struct {
	name   string
	file   string
	force  bool
	admins []string
	output outputFlags
}

func newRestoreCmd() *cobra.Command {
	var o restoreOptions
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore the store of a service from a backup",
		Long: `Replace the contents of a running service's store with those of a backup that
'skyserve backup' made. Requests are served meanwhile; planning, scaling and batches pause
for a few seconds. Replicas and balancers stay as they are.

The whole file is checked first. A damaged or truncated file, the backup of another service
and one of a later version of skyserve are rejected. A store that was
created before the backup, such as the one that was backed up, is replaced only with --force,
because what was written to it since the backup is lost. If the machines of a
service were lost, first run 'skyserve up': its new, empty store accepts the backup.
FILE may be an object in a bucket, s3://... or gs://..., with the credentials of the environment.`,
		Example: `  skyserve restore chat.backup --service chat
  skyserve restore s3://backups/chat-20261126T180000Z.backup --service chat`,
		Args: oneArgument("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := fileArgument(cmd, &o.name, &o.file, args); err != nil {
				return err
			}
			return withCredentialsHint(runRestore(cmd.Context(), &o, cmd.OutOrStdout()))
		},
	}
	registerService(cmd, &o.name)
	flags := cmd.Flags()
	flags.BoolVar(&o.force, "force", false, "discard what was stored since the backup")
	flags.StringSliceVar(&o.admins, "admin", nil, "admin `URL` of a balancer, repeatable or comma-separated (default: the running service's)")
	o.output.registerResult(cmd)
	return cmd
}

func runRestore(ctx context.Context, o *restoreOptions, out io.Writer) error {
	format, err := o.output.parse()
	if err != nil {
		return err
	}
	file, err := openBackupFile(ctx, o.name, o.file)
	if err != nil {
		return err
	}
	f, err := file.open(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return usage(fmt.Errorf("reading the backup: %w", err), "'skyserve backup' makes one")
	} else if errors.As(err, new(*exitError)) {
		return err
	} else if err != nil {
		return fmt.Errorf("reading the backup: %w", err)
	}
	check := &countingReader{r: f}
	b, err := store.CheckBackup(check)
	_ = f.Close() // it was read
	switch {
	case check.err != nil:
		return fmt.Errorf("reading the backup: %w", check.err)
	case errors.As(err, new(*telemetry.BackupError)):
		return usage(fmt.Errorf("reading the backup %s: %w", o.file, err), "nothing was changed")
	case err != nil:
		return fmt.Errorf("reading the backup %s: %w", o.file, err)
	case b.Service != o.name:
		return usage(fmt.Errorf("reading the backup %s: it is a backup of the service %s, not of %s", o.file, b.Service, o.name), "nothing was changed")
	}
	_, admins, err := findAdmins(ctx, o.name, o.admins)
	if err != nil {
		return err
	}
	for _, c := range respondingFirst(ctx, admins) {
		if err = c.Healthy(ctx); err != nil {
			continue
		}
		var f io.ReadCloser
		if f, err = file.open(ctx); err != nil {
			return fmt.Errorf("reading the backup: %w", err)
		}
		size := &countingReader{r: f}
		b, err = c.Restore(ctx, size, o.force)
		_ = f.Close() // it was read
		if err == nil {
			text := "restored %s from %s, made at " + b.At.Format(time.DateTime) + " UTC: %s, %s in the store, %s in the file\n"
			return reportBackup(out, format, o.file, b, size.n, text)
		}
		break // a restore that has begun is not repeated elsewhere
	}
	return restoreError(o.name, o.admins, err)
}

// restoreError returns the error of a restore, with a hint whether the store was changed.
func restoreError(name string, admins []string, err error) error {
	var status *telemetry.StatusError
	if !errors.As(err, &status) {
		return failed(fmt.Errorf("restoring %s: %w", name, err), cmp.Or(adminHint(admins, err), hintStatus+"; if it is, run the command again"))
	}
	hint := "the store may be incomplete: run the command again"
	switch status.Status {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed: // rejected before the first change
		hint = "nothing was changed"
	case http.StatusUnauthorized:
		hint = "nothing was changed; for an http URL, set " + envAdminToken + " to the token of the admin API; for https, run 'skyserve connect'"
	case http.StatusConflict:
		hint = "nothing was changed; --force discards everything stored since the backup, or completes an interrupted restore"
	case http.StatusLocked:
		hint = "nothing was changed; wait until the other restore has ended"
	}
	return failed(fmt.Errorf("restoring %s: %s", name, status.Message), hint)
}

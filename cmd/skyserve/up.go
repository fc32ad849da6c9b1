package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// defaultReplaceAfter is longer than a machine takes to start again.
const defaultReplaceAfter = 3 * time.Minute

// How long `up` waits unless it is told: processes of this machine start within seconds. Machines
// take minutes to boot, to get an image of 20 GiB, and the weights of a large model. An authority
// that refused a certificate is asked again after a minute, then after two, then after five.
const (
	waitForProcesses   = time.Minute
	waitForCertificate = 10 * time.Minute
	waitForMachines    = 30 * time.Minute
)

// waitFor is how long `up` waits for a service unless it is told.
func waitFor(spec *service.Spec) time.Duration {
	if cloud.Rents(spec) {
		return waitForMachines
	}
	if t := spec.Balancer.TLS; t != nil && t.ACME != nil {
		return waitForCertificate
	}
	return waitForProcesses
}

// upOptions are the flags of `skyserve up`.
type upOptions struct {
	file     string
	yes      bool
	dryRun   bool
	detailed bool
	wait     bool
	upgrade  bool
	timeout  time.Duration
	output   string
	// Of services in clouds only.
	clouds       cloudFlags
	programURL   string
	replace      []string
	replaceAfter time.Duration
}

func newUpCmd() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up SERVICE.yaml",
		Short: "Bring a service up, or change it to what its file says",
		Long: `Bring a service up as its file says, wait until it works and print its endpoints.
Run again it changes only what differs and repairs what died: missing processes
are started at once, replicas whose configuration differs are replaced one a
region at a time, balancers one at a time. Balancers take up another policy,
other models, keys, peers and replicas while they run ("reload"); only what they
cannot change then, such as an address, starts them again. Replicas beyond
replicas.min that 'skyserve plan --apply' or 'skyserve replica' decided on stay as
they are, within replicas.min and max.

Local regions are simulated engines, in the background on this machine. Static
ones are machines that you already have: their endpoints are attached to a balancer
that runs on this machine or, beside regions of a cloud, to the first of those there.
Neither is billed, and neither asks.

Regions of AWS and Google Cloud are rented: a machine for each balancer, one for each
replica, firewalls, and identities of least privilege, all with the tags of the
service. What will change is shown with its price an hour, and asked for. Where a zone
has no capacity the next one is tried, then the next capacity type and GPU in the
order of the file, then other regions of the service. A machine that its cloud runs and
that answers nothing is replaced, if another one answers. Each machine makes a key of its
own and gets its configuration and secrets once, over TLS that both sides verify; none
of it is in user data or tags. Credentials are those of the clouds' own tools.

` + envAdminToken + ` in the environment is the token of the balancers' admin
APIs. It is kept with the service, so that other shells need not have it; set to
nothing it takes the token away.

It waits up to --timeout: by default a minute, and half an hour where machines are
rented, which have to boot and to get images and weights. When that is over, what there
is stays up, and the public name leads to the balancers that answer (exit 3).

Processes go on with the executable that they were started with; --upgrade
replaces those that run another one than this.

Exit codes: 0 up, 1 failed, 2 error in the file, 3 only a part is up, 4 a cloud
refuses the credentials, 130 interrupted (running it again takes up where it ended).`,
		Example: `  skyserve up service.yaml
  skyserve up service.yaml --dry-run --detailed-exitcode
  skyserve up service.yaml --timeout 5m -o json`,
		Args: argsBetween(1, 1, "SERVICE.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.file = args[0]
			if cmd.Flags().Changed("timeout") && o.timeout <= 0 {
				return usage(fmt.Errorf("--timeout: must be above 0, got %s", o.timeout), "")
			}
			return runUp(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.yes, "yes", false, "do not ask before making what is billed (local and static regions never ask)")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would change and change nothing")
	flags.BoolVar(&o.detailed, "detailed-exitcode", false, "exit 10 instead of 0 when there are changes")
	flags.BoolVar(&o.wait, "wait", true, "wait until the service works")
	flags.BoolVar(&o.upgrade, "upgrade", false, "also replace processes that run another executable than this one")
	flags.DurationVar(&o.timeout, "timeout", 0, "how long to wait until the service works (default 1m; 10m where a certificate is obtained, 30m where machines are rented)")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json")
	flags.StringVar(&o.programURL, "program", "", "`URL` from which machines in clouds get skyserve for Linux, with #sha256=... where this machine cannot reach it (default: "+envProgram+", then what was said last)")
	flags.StringArrayVar(&o.replace, "replace", nil, "put another machine in the place of the one with this `ID` (clouds; repeatable)")
	flags.DurationVar(&o.replaceAfter, "replace-after", defaultReplaceAfter, "how long a machine that had time to boot may answer nothing before another takes its place (clouds; 0 = for ever)")
	o.clouds.add(flags)
	return cmd
}

// up is one run of `skyserve up`.
type up struct {
	*upOptions
	out, talk io.Writer
	begun     time.Time
	telling   sync.Mutex // held while a line is written
}

func runUp(ctx context.Context, o *upOptions, in io.Reader, out, talk io.Writer) error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	text, err := os.ReadFile(o.file)
	if err != nil {
		return usage(fmt.Errorf("reading the service: %w", err), "skyserve init writes a first service.yaml")
	}
	u := &up{upOptions: o, out: out, talk: talk, begun: time.Now()}
	spec, err := service.Parse(o.file, text)
	if err == nil {
		o.timeout = cmp.Or(o.timeout, waitFor(spec))
		warn(talk, o.file, spec)
	}
	if err != nil {
		return usage(err, "")
	}
	return bringUp(ctx, u, in, spec, text)
}

// warn tells what may be wrong with a service, which a file, or its name, stands for.
func warn(talk io.Writer, what string, spec *service.Spec) {
	for _, warning := range spec.Warnings() {
		fmt.Fprintf(talk, "%s: warning: %s\n", what, warning)
	}
}

// specUsage makes an error of configuration one of usage.
func specUsage(err error) error {
	var spec *provision.SpecError
	if errors.As(err, &spec) {
		return usage(err, "")
	}
	return err
}

// progress is told of every change.
func (u *up) progress(c provision.Change, p provision.Phase, err error) {
	verb := map[provision.Action]string{
		provision.ActionLaunch: "started", provision.ActionReplace: "replaced", provision.ActionReload: "reloaded", provision.ActionTerminate: "stopped",
	}[c.Action]
	switch p {
	case provision.PhaseDone:
		u.line("%s %s", verb, c.ID())
	case provision.PhaseFailed:
		u.line("failed %s", c.ID())
	}
}

// line says one thing that happened and when.
func (u *up) line(format string, args ...any) {
	u.telling.Lock()
	defer u.telling.Unlock()
	fmt.Fprintf(u.talk, "%6.1fs  %s\n", time.Since(u.begun).Seconds(), fmt.Sprintf(format, args...))
}

// dig is a question that the name server of a service answers.
func dig(d *service.DNS) string {
	at := netip.MustParseAddrPort(d.Listen) // the validator saw to that
	return fmt.Sprintf("dig @%s -p %d %s", at.Addr(), at.Port(), d.Name)
}

// curlOf is a request that a service answers.
func curlOf(spec *service.Spec, endpoint string) string {
	m := spec.Models[0]
	model := m.Name
	if len(m.Aliases) > 0 {
		model = m.Aliases[0]
	}
	auth := ""
	if spec.Balancer.Auth != nil {
		auth = ` -H "Authorization: Bearer $SKYSERVE_KEY"`
	}
	return fmt.Sprintf(`curl %s/v1/chat/completions%s -H 'Content-Type: application/json' -d '{"model":"%s","max_tokens":32,"messages":[{"role":"user","content":"Hello"}]}'`,
		endpoint, auth, model)
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// defaultReplaceAfter is longer than the restart of a machine takes.
const defaultReplaceAfter = 3 * time.Minute

// Defaults of --timeout. Local processes start within seconds. VMs take minutes to boot, to fetch
// an image of 20 GiB, and to fetch the weights of a large model. After an authority rejects
// a certificate request, the balancer retries after 1, 2, 2 and 5 minutes.
const (
	processTimeout     = time.Minute
	certificateTimeout = 10 * time.Minute
	vmTimeout          = 30 * time.Minute
)

// defaultTimeout returns the default of --timeout for a service.
func defaultTimeout(spec *service.Spec) time.Duration {
	if cloud.UsesClouds(spec) {
		return vmTimeout
	}
	if t := spec.Balancer.TLS; t != nil && t.ACME != nil {
		return certificateTimeout
	}
	return processTimeout
}

// upOptions are the flags of `skyserve up`.
type upOptions struct {
	file     string
	yes      bool
	dryRun   bool
	detailed bool
	wait     waitMode
	upgrade  bool
	resolve  deploy.ResolveImage
	timeout  time.Duration
	output   outputFlags
	format   outputFormat
	// Flags of services in clouds only.
	clouds       cloudFlags
	programURL   string
	replace      []string
	replaceAfter time.Duration
	reason       string // why the operator changes the service
}

func newUpCmd() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:        "up SERVICE.yaml",
		SuggestFor: []string{"apply", "deploy", "create", "start", "restart", "launch"},
		Short:      "Create or update a service from its service file",
		Long: `Deploy the service that a service file describes, wait until it is ready and print
its public URLs. The command is idempotent: a second run changes only what differs and
restarts what has died. Missing processes are started concurrently. Replicas whose
configuration differs are replaced one at a time in each region, balancers one at a time
in total. Balancers reload policy, models, keys, peers and replicas while they run; only
settings that cannot be reloaded, such as an address, restart them. Replicas beyond
regions[].replicas.min that 'skyserve plan --apply' or 'skyserve replica' added are kept,
up to regions[].replicas.max.

Local regions run simulated engines in the background on this machine. Static regions
are machines that you already have: their engines are attached to a balancer on this
machine or, if the service has cloud regions too, to the first balancer in a cloud.
Balancers on this machine listen on loopback only. Neither kind of region is billed, and
neither needs confirmation.

In regions of AWS and Google Cloud, skyserve rents one VM per balancer and per replica,
and creates firewalls and least-privilege identities, all tagged with the service. It
shows the changes with their hourly price and prompts for confirmation. If a zone has no
capacity, it tries the next zone, then the next capacity type and GPU in the order of
the file, then the other regions of the service. Each VM generates its own key, is
enrolled once, and receives its configuration and secrets over mutual TLS; user data and
tags contain neither. skyserve uses the credentials of the clouds' own command-line tools.

VMs and local processes that have ended are replaced at once. Those that run and do not
respond are polled before anything changes, for up to --replace-after (--timeout does not
limit this), and replaced if they still do not respond, but only if the network is not the
cause: for a balancer, another balancer must respond; for a replica, a balancer of its
region. docs/failures.md lists what the controller replaces while up does not run.

In each cloud, up uploads its own binary to a private bucket of the service, from which
VMs download it with their own identity. If this binary does not run on VMs (Linux on
amd64, built without cgo), pass --program FILE. With --program URL, VMs download the
binary from there. If the binary has changed, all VMs are replaced: replicas one at a time
in each region, balancers one at a time in total.

Without cloud regions, the environment variable ` + envAdminToken + ` sets the token of
the balancers' admin APIs. The token is stored with the service, so other shells do not need
it; an empty value removes it.

--timeout limits each wait: for addresses, ready machines and certificates, and for each
replacement. The default is 1 minute for processes on this machine, 10 minutes if the
service obtains a certificate, and 30 minutes if there are VMs, which must boot, pull
container images and load weights. After a timeout, everything that was started keeps
running, and the public DNS name points to the balancers that respond (exit 3). In clouds
the controller then starts the replicas; the output lists what needs another 'skyserve up'
run. If the replacement of a running machine is not ready in time, up stops (exit 1). If the
earlier machine still runs, the replacement is terminated. With three balancers or more, up
launches the balancer's earlier version again. docs/upgrades.md describes updates.

While VMs start, the command shows the phase of each: boot, enrolment (it receives its
certificate), image, weights (download), load (into GPU memory), warmup. It does not wait
for a replica that cannot become ready, for example because its weights do not exist: when
all others are ready, it prints the last log lines and the next step (exit 3, or 1 if every
replica has failed).

--wait balancers ends with exit 0 once every balancer responds, its certificate has been
obtained and the DNS name is published. --wait none ends earlier:
once every balancer has received its configuration, even if it does not respond to clients
yet. In both cases the controller starts the replicas: follow with 'skyserve status -w'.
Without cloud regions, up starts all processes and waits for them in every case, which takes
seconds.

In clouds, engines run in containers. up reads the digest of each image from its registry,
with the credentials of 'docker login', and records it with the service: all replicas
pull this digest, also those that the controller launches later, until engine.image
changes. With --resolve-image always, up reads the digests again and replaces the engines
whose tag has moved; with --resolve-image never, it reads no digest. If a registry does not
respond, machines pull the recorded digest, else the tag, and a warning says so. An image
that does not exist is an error (exit 2).

Local processes that run keep the binary that they were started with. --upgrade replaces
those that run a different binary.

Exit codes: 0 ready, 1 failed, 2 invalid file, 3 not all or no replicas are ready, and what
was started keeps running, 4 a cloud rejects the credentials, 130 interrupted (run it again
to continue).`,
		Example: `  skyserve up service.yaml
  skyserve up service.yaml --dry-run --detailed-exitcode
  skyserve up service.yaml --timeout 5m -o json
  skyserve up service.yaml --wait balancers`,
		Args: func(cmd *cobra.Command, args []string) error {
			return checkUpArgs(cmd, takeWaitValue(cmd, args, &o.wait))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.file = takeWaitValue(cmd, args, &o.wait)[0]
			if cmd.Flags().Changed("timeout") && o.timeout <= 0 {
				return usage(fmt.Errorf("--timeout: must be greater than 0, got %s", o.timeout), "")
			}
			if o.replaceAfter < 0 {
				return usage(fmt.Errorf("--replace-after: must be at least 0, got %s", o.replaceAfter), "")
			}
			if err := checkResolve(o.resolve); err != nil {
				return err
			}
			return runUp(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	registerReason(flags, &o.reason)
	flags.BoolVar(&o.yes, "yes", false, "skip confirmation of billed changes (local and static regions need none)")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would change without changing it; missing secrets and ports in use are errors")
	flags.BoolVar(&o.detailed, "detailed-exitcode", false, "exit 10 instead of 0 when there are changes")
	registerWaitFlag(cmd, &o.wait)
	flags.BoolVar(&o.upgrade, "upgrade", false, "also replace local processes that run a different binary")
	registerResolveFlag(cmd, &o.resolve)
	flags.DurationVar(&o.timeout, "timeout", 0, "limit of each wait, such as until machines are ready (default 1m; 10m if the service obtains a certificate, 30m if it has VMs)")
	o.output.registerResult(cmd)
	flags.StringVar(&o.programURL, "program", "", "skyserve binary for VMs (Linux, amd64): `FILE` to upload to a bucket, or URL from which VMs download it; append #sha256=HASH if this machine cannot download it to compute the hash (default: "+envProgram+", then the last URL used, then this binary)")
	flags.StringArrayVar(&o.replace, "replace", nil, "replace the machine named `ID`, such as lb-us-0, by a new one (repeatable)")
	flags.DurationVar(&o.replaceAfter, "replace-after", defaultReplaceAfter, "replace a VM or local process that has started and does not respond to this command for this long (0 = never)")
	o.clouds.registerFlags(flags)
	return cmd
}

// up is one run of `skyserve up`.
type up struct {
	*upOptions
	out, errOut io.Writer
	started     time.Time
	lineMu      sync.Mutex // serialises progress lines
	// block is the group of rows below the lines of a terminal; nil where errOut is none.
	block *terminalBlock
	// interrupted is closed when the run is interrupted; nil = never.
	interrupted <-chan struct{}
	// observer observes the run instead of a person; nil = none.
	observer *upObserver
	log      changeLog
	// launchesBegun is true once the launch of a machine has begun.
	launchesBegun atomic.Bool
	// changed is true once a change of the plan has been made.
	changed atomic.Bool
}

func runUp(ctx context.Context, o *upOptions, in io.Reader, out, errOut io.Writer) error {
	var err error
	if o.format, err = o.output.parse(); err != nil {
		return err
	}
	text, err := readServiceFile(o.file)
	if err != nil {
		return err
	}
	u := &up{upOptions: o, out: out, errOut: errOut, started: time.Now(), block: newTerminalBlock(errOut), interrupted: ctx.Done()}
	spec, err := parseService(o.file, text)
	if err == nil {
		o.timeout = cmp.Or(o.timeout, defaultTimeout(spec))
		printWarnings(errOut, o.file, warningsOf(spec))
	}
	if err != nil {
		return usage(err, "")
	}
	if o.programURL != "" && !cloud.UsesClouds(spec) {
		return usage(errors.New("--program: applies to regions in clouds only, and the service has none"), "local processes run the binary that runs 'up': run 'up --upgrade' with the other binary instead")
	}
	return deployService(ctx, u, in, spec, text)
}

// printWarnings prints warnings about a service, after its file or its name.
func printWarnings(errOut io.Writer, what string, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintf(errOut, "%s: warning: %s\n", what, warning)
	}
}

// specUsage marks a configuration error as a usage error (exit 2).
func specUsage(err error) error {
	var spec *provision.SpecError
	if errors.As(err, &spec) {
		return usage(err, "")
	}
	return err
}

// progress prints a line for each change that is done, has failed or was interrupted.
func (u *up) progress(c provision.Change, p provision.ChangePhase, _ error) {
	u.observer.recordChange(c, p)
	if c.Desired.Machine != nil && (c.Action == provision.ActionLaunch || c.Action == provision.ActionReplace) {
		u.launchesBegun.Store(true)
	}
	u.log.addChange(c, p)
	if p == provision.PhaseDone {
		u.changed.Store(true)
	}
	verb := map[provision.ChangeAction]string{
		provision.ActionLaunch: "started", provision.ActionReplace: "replaced", provision.ActionReload: "reloaded", provision.ActionRepair: "repaired", provision.ActionTerminate: "stopped",
	}[c.Action]
	switch p {
	case provision.PhaseDone:
		u.printLine("%s %s", verb, c.ID())
	case provision.PhaseFailed:
		select {
		case <-u.interrupted: // all changes in progress end with it
			verb = "interrupted"
		default:
			verb = "failed"
		}
		u.printLine("%s %s", verb, c.ID())
	}
}

// printLine prints a progress line with the time since the start.
func (u *up) printLine(format string, args ...any) {
	u.lineMu.Lock()
	defer u.lineMu.Unlock()
	var rows []string
	if u.block != nil {
		rows = u.block.rows
		u.block.draw(nil)
	}
	fmt.Fprintf(u.errOut, "%6.1fs  %s\n", time.Since(u.started).Seconds(), fmt.Sprintf(format, args...))
	if u.block != nil {
		u.block.draw(rows)
	}
}

// drawBlock draws rows below the progress lines of a terminal, in place of the last ones.
func (u *up) drawBlock(rows []string) {
	u.lineMu.Lock()
	defer u.lineMu.Unlock()
	if u.block != nil {
		u.block.draw(rows)
	}
}

// digCommand returns a dig command that queries the service's name server.
func digCommand(d *service.DNS) string {
	at := netip.MustParseAddrPort(d.Listen) // validated with the file
	return fmt.Sprintf("dig @%s -p %d %s", at.Addr(), at.Port(), d.Name)
}

// credentialVariable returns the environment variable for the credential of a client in proposed commands: an API key,
// or an identity token if the service accepts only tokens; empty without authentication.
func credentialVariable(spec *service.Spec) string {
	switch auth := spec.Balancer.Auth; {
	case !auth.Required():
		return ""
	case auth.KeysFrom == "":
		return "SKYSERVE_TOKEN"
	}
	return "SKYSERVE_KEY"
}

// loadCommand returns a command that generates load for the service.
func loadCommand(spec *service.Spec, name string) string {
	if variable := credentialVariable(spec); variable != "" {
		return "skyserve load" + name + " --api-key env:" + variable
	}
	return "skyserve load" + name
}

// curlCommand returns a curl command that sends a request to the service.
func curlCommand(spec *service.Spec, endpoint string) string {
	m := spec.Models[0]
	model := m.Name
	if len(m.Aliases) > 0 {
		model = m.Aliases[0]
	}
	auth := ""
	if variable := credentialVariable(spec); variable != "" {
		auth = ` -H "Authorization: Bearer $` + variable + `"`
	}
	return fmt.Sprintf(`curl %s/v1/chat/completions%s -H 'Content-Type: application/json' -d '{"model":"%s","max_tokens":32,"messages":[{"role":"user","content":"Hello"}]}'`,
		endpoint, auth, model)
}

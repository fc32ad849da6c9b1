package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// doctorOptions are the flags of `skyserve doctor`.
type doctorOptions struct {
	file   string
	output outputFlags
	clouds cloudFlags
	rehearseOptions
}

func newDoctorCmd() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor SERVICE.yaml",
		Short: "Check a service's cloud prerequisites before 'up'",
		Long: `Check what a service needs from its clouds, without changing anything: credentials,
permissions to launch and list (by a dry run), the quotas of each region, prices, the
public DNS name, and this machine's clock.

With --rehearse, doctor instead deploys a temporary service NAME-rehearsal, which costs
cents: one small balancer and one small machine with a simulated engine in the first
region of each cloud in the file, with the file's networks and allowed addresses, and the
binary that 'skyserve up' would install. It sends requests, terminates the machines of the
engines, waits until the controller has replaced them, deletes everything, and verifies
that nothing is left. It shows the cost and asks for confirmation first. It deletes
everything even after a failure or Ctrl-C, and writes a report without account ids and
secrets. If it is killed, its machines remain: the next --rehearse, or 'skyserve down
NAME-rehearsal', deletes them.

Exit codes: 0 all checks or steps passed, 1 one failed, 2 invalid file, 4 a cloud rejects
the credentials, 130 interrupted (everything was deleted, unless the output says otherwise).`,
		Example: `  skyserve doctor service.yaml
  skyserve doctor service.yaml -o json
  skyserve doctor service.yaml --rehearse --program https://example.com/skyserve`,
		Args: argsBetween(1, 1, "SERVICE.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.file = args[0]
			if err := o.checkRehearsalFlags(cmd.Flags()); err != nil {
				return err
			}
			if o.rehearse {
				return runRehearsal(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			return runDoctor(cmd.Context(), &o, cmd.OutOrStdout())
		},
	}
	o.output.registerDocument(cmd)
	o.registerRehearsalFlags(cmd.Flags())
	o.clouds.registerFlags(cmd.Flags())
	return cmd
}

// checkedProvider is a provider with checks of its own.
type checkedProvider interface {
	Doctor(ctx context.Context) []provision.CheckResult
}

func runDoctor(ctx context.Context, o *doctorOptions, out io.Writer) error {
	format, err := o.output.parse()
	if err != nil {
		return err
	}
	text, err := readServiceFile(o.file)
	if err != nil {
		return err
	}
	spec, err := parseService(o.file, text)
	if err != nil {
		return usage(err, "")
	}
	if o.clouds.downloads, err = downloadsFromBuckets(spec.Name, o.programURL); err != nil {
		return err
	}
	places, err := o.clouds.providersOf(ctx, spec)
	if err != nil {
		return cloudError(err)
	}
	findings, quotas := []provision.CheckResult{}, []provision.Quota{}
	for _, name := range slices.Sorted(maps.Keys(places)) {
		provider, ok := places[name].(checkedProvider)
		if !ok {
			return fmt.Errorf("checking %s: its provider has no checks", name)
		}
		findings = append(findings, provider.Doctor(ctx)...)
	}
	found, unknown := quotasOf(ctx, places, cloud.Regions(spec))
	quotas = append(quotas, found...)
	var rejected *provision.CredentialsError
	for _, r := range slices.Sorted(maps.Keys(unknown)) {
		if err := unknown[r]; !errors.As(err, &rejected) { // Doctor has reported rejected credentials already
			findings = append(findings, provision.CheckResult{Where: string(r), Message: "quotas: " + err.Error()})
		}
	}
	findings = append(findings, withinQuotas(spec, quotas)...)
	findings = append(findings, findPrices(ctx, places, cloud.Regions(spec))...)
	for _, find := range []func(context.Context, *service.Spec, provision.MultiCloud) ([]provision.CheckResult, error){o.findReservations, o.findLaunches, o.findImages, o.findName, o.findFederation, o.findStrangers} {
		found, err := find(ctx, spec, places)
		if err != nil {
			return err
		}
		findings = append(findings, found...)
	}
	if format.isDocument() {
		err = format.writeDocument(out, map[string]any{"service": spec.Name, "findings": findings, "quotas": quotas})
	} else {
		err = printFindings(out, findings, quotas)
	}
	if err != nil {
		return err
	}
	if n := len(slices.DeleteFunc(slices.Clone(findings), func(f provision.CheckResult) bool { return f.OK })); n > 0 {
		code := exitFailed
		if rejected != nil {
			code = exitCredentials
		}
		return &exitError{code: code, err: fmt.Errorf("%d of %d checks failed", n, len(findings))}
	}
	return nil
}

// findName checks whether the service can use its public name. Without a name it returns nothing.
func (o *doctorOptions) findName(ctx context.Context, spec *service.Spec, _ provision.MultiCloud) ([]provision.CheckResult, error) {
	zone, err := o.clouds.nameZone(ctx, spec, nil)
	if err != nil || zone == nil {
		return nil, err
	}
	owner, err := localOwner(spec.Name)
	if err != nil {
		return nil, err
	}
	f := provision.CheckResult{Where: service.CloudAWS, OK: true, Message: fmt.Sprintf("DNS name %s: its hosted zone exists, and no other service owns the name", spec.DNS.Name)}
	if err := checkName(ctx, zone, spec, owner); err != nil {
		f.OK, f.Message = false, fmt.Sprintf("DNS name %s: %v", spec.DNS.Name, err)
		var coded *exitError
		if errors.As(cloudError(err), &coded) {
			f.Hint = coded.hint
		}
	}
	return []provision.CheckResult{f}, nil
}

// findStrangers finds machines that claim to be balancers of the service but were not
// launched from this machine. It returns nothing if the service was not deployed from this
// machine, or if it cannot be listed, which another finding reports.
func (o *doctorOptions) findStrangers(ctx context.Context, spec *service.Spec, places provision.MultiCloud) ([]provision.CheckResult, error) {
	svc, who, err := localOperator(spec.Name)
	if err != nil || who.authority == nil || len(places) == 0 {
		return nil, err
	}
	enrolments, err := deploy.ReadEnrolments(svc)
	if err != nil {
		return nil, err
	}
	have, err := places.List(ctx, spec.Name)
	if err != nil {
		return nil, nil //nolint:nilerr // another finding reports a cloud that cannot be listed
	}
	var findings []provision.CheckResult
	strangers, _ := who.examine(ctx, spec.Name, enrolments, have)
	for _, machine := range strangers {
		err := &deploy.UnknownMachinesError{Machines: []provision.Object{machine}}
		findings = append(findings, provision.CheckResult{Where: string(machine.Region), Message: err.Error(), Hint: err.Hint(o.file)})
	}
	if len(strangers) == 0 && len(have) > 0 {
		findings = append(findings, provision.CheckResult{Where: spec.Name, OK: true, Message: "all its balancers were launched from this machine or by its controllers"})
	}
	return findings, nil
}

// localOwner returns the owner of a service; empty if this machine has no operator of it.
func localOwner(name string) (string, error) {
	_, who, err := localOperator(name)
	return who.owner, err
}

// localOperator returns this machine's operator of a service; the zero operator if there is none.
func localOperator(name string) (svc local.Service, who operator, err error) {
	home, err := local.OpenHome()
	if err != nil {
		return svc, who, err
	}
	svc, err = home.Find(name)
	var none *local.NoServiceError
	if errors.As(err, &none) {
		return svc, who, nil
	}
	if err != nil {
		return svc, who, err
	}
	who, err = openOperator(svc, false)
	if errors.Is(err, fs.ErrNotExist) {
		return svc, operator{}, nil
	}
	return svc, who, err
}

// printFindings lists the findings, failed checks first.
func printFindings(w io.Writer, findings []provision.CheckResult, quotas []provision.Quota) error {
	if len(findings)+len(quotas) == 0 {
		_, err := fmt.Fprintln(w, "nothing to check: the service has no cloud regions")
		return err
	}
	t := printable.NewTable(w)
	t.HideTitles(titleResult, "WHERE", "MESSAGE")
	for _, ok := range []bool{false, true} {
		for _, f := range findings {
			if f.OK != ok {
				continue
			}
			word := resultOK
			switch {
			case !f.OK:
				word = resultFail
			case f.Warning:
				word = resultWarn
			}
			t.Rowf("%s\t%s\t%s", word, f.Where, f.Message)
			before := "hint: "
			for line := range strings.Lines(f.Hint) { // one line per command
				t.Rowf("\t\t%s%s", before, strings.TrimRight(line, "\n"))
				before = "      "
			}
		}
	}
	t.HideTitles()
	if len(quotas) > 0 {
		t.Rowf("\nQUOTA\tREGION\tUSED\tLIMIT")
	}
	for _, q := range quotas {
		t.Rowf("%s (%s)\t%s\t%g\t%g %s", q.Name, q.Code, q.Region, q.Used, q.Limit, q.Unit)
	}
	return t.Flush()
}

// withinQuotas checks whether each quota suffices for the service's minimum number of machines.
// An unknown quota yields no finding.
func withinQuotas(spec *service.Spec, quotas []provision.Quota) []provision.CheckResult {
	var findings []provision.CheckResult
	for _, n := range cloud.CompareQuotas(cloud.QuotaNeeds(spec), quotas) {
		if n.Limit == nil {
			continue
		}
		f := provision.CheckResult{
			Where: string(n.Region), OK: !n.Exceeded(),
			Message: fmt.Sprintf("%s (%s): %g of %g %s in use, the service needs at least %g", n.Name, n.Code, *n.Used, *n.Limit, n.Unit, n.Needs),
		}
		if !f.OK {
			f.Hint = "if this service does not cause the usage, choose another capacity type, GPU or region, or request an increase: " + n.IncreaseRequest()
		}
		findings = append(findings, f)
	}
	return findings
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// doctorOptions are the flags of `skyserve doctor`.
type doctorOptions struct {
	file   string
	output string
	clouds cloudFlags
}

func newDoctorCmd() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor SERVICE.yaml",
		Short: "Check credentials, permissions, quotas and time before 'up'",
		Long: `Look at all that a service needs of its clouds, and change nothing: whose
credentials there are, whether they may launch and list (by a dry run), how far the
quotas of each region reach, whether the clouds tell prices, whether the public name
can be had, and whether this machine's clock is right.

Exit codes: 0 nothing is amiss, 1 something is, 2 error in the file, 4 a cloud
refuses the credentials.`,
		Example: `  skyserve doctor service.yaml
  skyserve doctor service.yaml -o json`,
		Args: argsBetween(1, 1, "SERVICE.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.file = args[0]
			return runDoctor(cmd.Context(), &o, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "text or json")
	o.clouds.add(cmd.Flags())
	return cmd
}

// examined is a provider that can be asked what is amiss.
type examined interface {
	Doctor(ctx context.Context) []provision.Finding
}

func runDoctor(ctx context.Context, o *doctorOptions, out io.Writer) error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	text, err := os.ReadFile(o.file)
	if err != nil {
		return usage(fmt.Errorf("reading the service: %w", err), "skyserve init writes a first service.yaml")
	}
	spec, err := service.Parse(o.file, text)
	if err != nil {
		return usage(err, "")
	}
	places, err := o.clouds.placesOf(ctx, spec)
	if err != nil {
		return cloudError(err)
	}
	findings, quotas := []provision.Finding{}, []provision.Quota{}
	for _, name := range cloud.Clouds(spec) {
		provider, ok := places[name].(examined)
		if !ok {
			return fmt.Errorf("examining %s: it cannot be asked", name)
		}
		findings = append(findings, provider.Doctor(ctx)...)
	}
	found, unknown := quotasOf(ctx, places, cloud.Rented(spec))
	quotas = append(quotas, found...)
	var refused *provision.CredentialsError
	for _, r := range slices.Sorted(maps.Keys(unknown)) {
		if err := unknown[r]; !errors.As(err, &refused) { // who is refused is told that once, by Doctor
			findings = append(findings, provision.Finding{Where: string(r), What: "quotas: " + err.Error()})
		}
	}
	findings = append(findings, withinQuotas(spec, quotas)...)
	findings = append(findings, findPrices(ctx, places, cloud.Rented(spec))...)
	for _, find := range []func(context.Context, *service.Spec, provision.Places) ([]provision.Finding, error){o.findName, o.findStrangers} {
		found, err := find(ctx, spec, places)
		if err != nil {
			return err
		}
		findings = append(findings, found...)
	}
	if o.output == "json" {
		err = json.NewEncoder(out).Encode(map[string]any{"service": spec.Name, "findings": findings, "quotas": quotas})
	} else {
		err = printFindings(out, findings, quotas)
	}
	if err != nil {
		return err
	}
	if n := len(slices.DeleteFunc(slices.Clone(findings), func(f provision.Finding) bool { return f.OK })); n > 0 {
		code := exitFailed
		if refused != nil {
			code = exitCredentials
		}
		return &exitError{code: code, err: fmt.Errorf("%d of %d things are not as they must be", n, len(findings))}
	}
	return nil
}

// findName looks at whether a service can have its public name; nothing where it has none.
func (o *doctorOptions) findName(ctx context.Context, spec *service.Spec, _ provision.Places) ([]provision.Finding, error) {
	zone, err := o.clouds.zone(ctx, spec, nil)
	if err != nil || zone == nil {
		return nil, err
	}
	owner, err := ownerHere(spec.Name)
	if err != nil {
		return nil, err
	}
	f := provision.Finding{Where: service.CloudAWS, OK: true, What: fmt.Sprintf("name %s: its zone is there, and nobody else has it", spec.DNS.Name)}
	if err := checkName(ctx, zone, spec, owner); err != nil {
		f.OK, f.What = false, fmt.Sprintf("name %s: %v", spec.DNS.Name, err)
		var coded *exitError
		if errors.As(cloudError(err), &coded) {
			f.Hint = coded.hint
		}
	}
	return []provision.Finding{f}, nil
}

// findStrangers looks for machines that claim to be balancers of a service, and that nobody
// launched here; nothing where the service is not brought up from here, or cannot be listed, which
// is told elsewhere.
func (o *doctorOptions) findStrangers(ctx context.Context, spec *service.Spec, places provision.Places) ([]provision.Finding, error) {
	svc, who, err := operatorHere(spec.Name)
	if err != nil || who.authority == nil || len(places) == 0 {
		return nil, err
	}
	enrolments, err := fleet.ReadEnrolments(svc)
	if err != nil {
		return nil, err
	}
	have, err := places.List(ctx, spec.Name)
	if err != nil {
		return nil, nil //nolint:nilerr // what a cloud that cannot be asked answers is a finding of its own
	}
	var findings []provision.Finding
	strangers, _ := enrolments.Examine(have, who.isCertified(ctx, spec.Name))
	for _, machine := range strangers {
		err := &fleet.StrangersError{Machines: []provision.Object{machine}}
		findings = append(findings, provision.Finding{Where: string(machine.Region), What: err.Error(), Hint: err.Hint(o.file)})
	}
	if len(strangers) == 0 && len(have) > 0 {
		findings = append(findings, provision.Finding{Where: spec.Name, OK: true, What: "its balancers are those that were launched from here"})
	}
	return findings, nil
}

// ownerHere is the owner of a service as far as this machine knows; empty where it does not.
func ownerHere(name string) (string, error) {
	_, who, err := operatorHere(name)
	return who.owner, err
}

// operatorHere is this machine's operator of a service; the zero operator where it has none.
func operatorHere(name string) (svc local.Service, who operator, err error) {
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

// printFindings lists what was found, what is amiss first.
func printFindings(w io.Writer, findings []provision.Finding, quotas []provision.Quota) error {
	if len(findings)+len(quotas) == 0 {
		_, err := fmt.Fprintln(w, "nothing of this service is in a cloud: there is nothing to check")
		return err
	}
	t := printable.NewTable(w)
	for _, ok := range []bool{false, true} {
		for _, f := range findings {
			if f.OK != ok {
				continue
			}
			word := "ok"
			if !f.OK {
				word = "FAIL"
			}
			t.Rowf("%s\t%s\t%s", word, f.Where, f.What)
			before := "hint: "
			for line := range strings.Lines(f.Hint) { // commands to paste have a line each
				t.Rowf("\t\t%s%s", before, strings.TrimRight(line, "\n"))
				before = "      "
			}
		}
	}
	if len(quotas) > 0 {
		t.Rowf("\nQUOTA\tREGION\tUSED\tLIMIT")
	}
	for _, q := range quotas {
		t.Rowf("%s (%s)\t%s\t%g\t%g %s", q.Name, q.Code, q.Region, q.Used, q.Limit, q.Unit)
	}
	return t.Flush()
}

// withinQuotas says where the fewest machines that a service wants are more than the
// account may still have, and where they are not. What is not known is no finding.
func withinQuotas(spec *service.Spec, quotas []provision.Quota) []provision.Finding {
	var findings []provision.Finding
	for _, n := range cloud.Against(cloud.QuotaNeeds(spec), quotas) {
		if n.Limit == nil {
			continue
		}
		f := provision.Finding{
			Where: string(n.Region), OK: !n.Exceeded(),
			What: fmt.Sprintf("%s (%s): %g of %g %s are in use, and the fewest machines need %g", n.Name, n.Code, *n.Used, *n.Limit, n.Unit, n.Needs),
		}
		if !f.OK {
			f.Hint = "unless they are this service's own already, take another capacity type, GPU or region, or have more: " + n.Request()
		}
		findings = append(findings, f)
	}
	return findings
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/dns"
	"skyserve/provision/local"
)

// gcOptions are the flags of `skyserve gc`.
type gcOptions struct {
	regions []string
	zones   []string
	yes     bool
	dryRun  bool
	list    outputFlags
	clouds  cloudFlags
	// unknown is a service of this machine to treat as unknown; empty = none.
	unknown string
}

func newGCCmd() *cobra.Command {
	var o gcOptions
	cmd := &cobra.Command{
		Use:   "gc [--region CLOUD/REGION]... [--dns-zone DOMAIN]...",
		Short: "Delete orphaned cloud resources",
		Long: `Find orphaned resources: VMs, firewalls, identities and buckets with the tags of a service
that this machine neither deployed nor joined with 'skyserve connect', and the DNS names of
such services in hosted zones of Route 53. Show them with their hourly cost and delete them
after confirmation, DNS names together with their health checks. Resources without such tags
are ignored. At least one --region or --dns-zone is required.

Services of other operators in this account look the same as orphaned resources. Read
the list before you confirm.`,
		Example: `  skyserve gc --region aws/us-east-1 --region gcp/europe-west4 --dry-run
  skyserve gc --region aws/us-east-1 --dns-zone example.com --yes -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runGC(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.regions, "region", nil, "region to search, as `CLOUD/REGION`, such as aws/us-east-1 (repeatable)")
	flags.StringArrayVar(&o.zones, "dns-zone", nil, "hosted zone to search, as `DOMAIN`, such as example.com (repeatable)")
	flags.BoolVar(&o.yes, "yes", false, "skip confirmation")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would be deleted without deleting it")
	o.list.registerList(cmd)
	o.clouds.registerFlags(flags)
	return cmd
}

func runGC(ctx context.Context, o *gcOptions, in io.Reader, out, errOut io.Writer) error {
	format, err := o.list.parse()
	if err != nil {
		return err
	}
	if len(o.regions)+len(o.zones) == 0 {
		return usage(errors.New("requires --region or --dns-zone"), "pass --region aws/us-east-1 for each region, and --dns-zone example.com for DNS names")
	}
	if slices.Contains(o.zones, "") {
		return usage(errors.New("--dns-zone: must be a domain such as example.com, got an empty string"), "")
	}
	g, err := findOrphans(ctx, o)
	if err != nil {
		return cloudError(err)
	}
	if !format.isDocument() {
		if err := g.printOrphans(out, errOut, format); err != nil {
			return err
		}
	}
	if !o.dryRun && len(g.objects)+len(g.names) > 0 {
		if !o.yes {
			if format.isDocument() { // it is printed at the end, but the question is about the list
				if err := g.printOrphans(errOut, errOut, outputFormat{kind: outputText}); err != nil {
					return err
				}
			}
			if err := confirmAction(in, errOut, "deletes resources that may be another operator's"); err != nil {
				return err
			}
		}
		err = g.deleteOrphans(ctx, errOut)
	}
	if format.isDocument() {
		if printing := g.encode(out, format, o.dryRun); printing != nil {
			return printing
		}
	}
	if err != nil && g.removed > 0 {
		return &exitError{code: exitPartial, err: err, hint: "retry"}
	}
	return cloudError(err)
}

// orphans are the resources of services that this machine is not an operator of.
type orphans struct {
	places  provision.MultiCloud
	zone    *dns.Route53
	objects []provision.Object
	names   []provision.PublicName
	removed int
}

// findOrphans finds the orphaned resources in the regions and zones of the flags.
func findOrphans(ctx context.Context, o *gcOptions) (*orphans, error) {
	regions, err := readRegions(o.regions)
	if err != nil {
		return nil, err
	}
	known, err := knownServices()
	if err != nil {
		return nil, err
	}
	known = slices.DeleteFunc(known, func(s deploy.ServiceKey) bool { return o.unknown != "" && s.Name == o.unknown })
	g := &orphans{}
	o.clouds.programs = true
	if g.places, err = o.clouds.providers(ctx, &service.Spec{}, regions, false); err != nil {
		return nil, err
	}
	if g.objects, err = deploy.Orphans(ctx, g.places, known); err != nil || len(o.zones) == 0 {
		return g, err
	}
	if g.zone, err = dns.NewRoute53(ctx, dns.Config{Endpoint: o.clouds.endpointAWS}); err != nil {
		return nil, err
	}
	for _, zone := range o.zones {
		names, err := g.zone.Names(ctx, strings.TrimSuffix(zone, "."))
		if err != nil {
			return nil, err
		}
		g.names = append(g.names, slices.DeleteFunc(names, func(n provision.PublicName) bool {
			return slices.Contains(known, deploy.ServiceKey{Name: n.Service, Owner: n.Owner})
		})...)
	}
	return g, nil
}

// deleteOrphans deletes the names first, so that none resolves to a deleted machine, then the objects.
func (g *orphans) deleteOrphans(ctx context.Context, errOut io.Writer) error {
	var failure error
	for _, n := range g.names {
		if err := g.zone.Set(ctx, n); err != nil {
			failure = errors.Join(failure, err)
			continue
		}
		g.removed++
		fmt.Fprintf(errOut, "deleted %s of %s\n", n.Name, n.Service)
	}
	err := deploy.DeleteObjects(ctx, g.places, g.objects, func(c provision.Change, p provision.ChangePhase, _ error) {
		if p == provision.PhaseDone {
			g.removed++
			fmt.Fprintf(errOut, "deleted %s of %s\n", c.ID(), c.Observed.Service)
		}
	})
	return errors.Join(failure, err)
}

// orphanName is an orphaned DNS name in the JSON output.
type orphanName struct {
	Name    string `json:"name"`
	Zone    string `json:"zone"`
	Private bool   `json:"private"`
	Service string `json:"service"`
	Owner   string `json:"owner"`
}

// encode prints the orphaned resources as a document.
func (g *orphans) encode(out io.Writer, format outputFormat, dryRun bool) error {
	objects, names := g.objects, []orphanName{}
	if objects == nil {
		objects = []provision.Object{}
	}
	for _, n := range g.names {
		names = append(names, orphanName{n.Name, n.Zone, n.Private, n.Service, n.Owner})
	}
	return format.writeDocument(out, map[string]any{"orphans": objects, "names": names, "removed": g.removed, "dry_run": dryRun})
}

// readRegions parses cloud regions.
func readRegions(texts []string) ([]service.Region, error) {
	var regions []service.Region
	for _, text := range texts {
		r := service.Region(text)
		if c := r.Cloud(); c != service.CloudAWS && c != service.CloudGCP || r.ShortName() == "" || r.ShortName() == text {
			return nil, usage(fmt.Errorf("--region: must be aws/REGION or gcp/REGION, got %q", text), "")
		}
		regions = append(regions, r)
	}
	return regions, nil
}

// knownServices returns the services that this machine is an operator of, except rehearsals that
// were killed.
func knownServices() ([]deploy.ServiceKey, error) {
	home, err := local.OpenHome()
	if err != nil {
		return nil, err
	}
	names, err := home.Services()
	if err != nil {
		return nil, err
	}
	var known []deploy.ServiceKey
	for _, name := range names {
		svc, err := home.Service(name)
		if err != nil {
			return nil, err
		}
		if abandoned, err := isAbandonedRehearsal(svc); err != nil || abandoned {
			if err != nil {
				return nil, err
			}
			continue
		}
		who, err := openOperator(svc, false)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the service is not in a cloud
		}
		if err != nil {
			return nil, err
		}
		known = append(known, deploy.ServiceKey{Name: name, Owner: who.owner})
	}
	return known, nil
}

// byPlace orders objects by service, region, kind and id.
func byPlace(a, b provision.Object) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
}

// printOrphans lists the orphaned resources.
func (g *orphans) printOrphans(out, errOut io.Writer, format outputFormat) error {
	if len(g.objects)+len(g.names) == 0 {
		fmt.Fprintln(errOut, "no orphaned resources")
		return nil
	}
	if err := format.write(out, nil, g.table()); err != nil {
		return err
	}
	var sum float64
	for _, o := range g.objects {
		sum += o.CostPerHour
	}
	fmt.Fprintf(errOut, "%d orphaned, $%.2f/h\n", len(g.objects)+len(g.names), sum)
	return nil
}

// table returns the table of the orphaned resources.
func (g *orphans) table() list {
	t := list{titles: []string{"SERVICE", "REGION", "KIND", "ID", "HANDLE", "$/H", "SINCE"}, wide: []string{"OWNER"}, fitting: printable.Fitting{Optional: []string{"SINCE", "KIND", "REGION"}, Whole: []string{"HANDLE"}}}
	for _, o := range slices.SortedFunc(slices.Values(g.objects), byPlace) {
		since := ""
		if !o.Started.IsZero() {
			since = o.Started.UTC().Format("2006-01-02 15:04")
		}
		t.rows = append(t.rows, listRow{o.Handle, []string{o.Service, string(o.Region), string(o.Kind), o.ID, o.Handle, fmt.Sprintf("%.4f", o.CostPerHour), since}, []string{o.Owner}})
	}
	for _, n := range g.names {
		t.rows = append(t.rows, listRow{n.Name, []string{n.Service, "", "name", n.Name, n.Zone, "", ""}, []string{n.Owner}})
	}
	return t
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/fleet"
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
	output  string
	clouds  cloudFlags
}

func newGCCmd() *cobra.Command {
	var o gcOptions
	cmd := &cobra.Command{
		Use:   "gc --region CLOUD/PLACE... --zone DOMAIN...",
		Short: "Find and remove what services left in clouds",
		Long: `Find the machines, firewalls and identities that carry the tags of a service of
which this machine is no operator, and the names of such services in hosted zones of
Route 53, show them with what they cost an hour, and remove them after asking, names
with their health checks. What carries no such tags is not looked at.

What another operator of this account runs looks the same as what was left behind:
read the list before agreeing.`,
		Example: `  skyserve gc --region aws/us-east-1 --region gcp/europe-west4 --dry-run
  skyserve gc --region aws/us-east-1 --zone example.com --yes -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runGC(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.regions, "region", nil, "look in `CLOUD/PLACE`, such as aws/us-east-1 (repeatable)")
	flags.StringArrayVar(&o.zones, "zone", nil, "look in the hosted zone of `DOMAIN`, such as example.com (repeatable)")
	flags.BoolVar(&o.yes, "yes", false, "do not ask")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would go and remove nothing")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json")
	o.clouds.add(flags)
	return cmd
}

func runGC(ctx context.Context, o *gcOptions, in io.Reader, out, talk io.Writer) error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	if len(o.regions)+len(o.zones) == 0 {
		return usage(errors.New("--region: missing: where should be looked?"), "--region aws/us-east-1, as often as there are regions, and --zone example.com for names")
	}
	g, err := findOrphans(ctx, o)
	if err != nil {
		return cloudError(err)
	}
	if o.output == "text" {
		g.print(out)
	}
	if !o.dryRun && len(g.objects)+len(g.names) > 0 {
		if !o.yes {
			if err := ask(in, talk, "removes what may be another operator's"); err != nil {
				return err
			}
		}
		err = g.remove(ctx, talk)
	}
	if o.output == "json" {
		if printing := g.encode(out, o.dryRun); printing != nil {
			return printing
		}
	}
	if err != nil && g.removed > 0 {
		return &exitError{code: exitPartial, err: err, hint: "run it again"}
	}
	return cloudError(err)
}

// leftovers are what services left of which this machine is no operator.
type leftovers struct {
	places  provision.Places
	zone    *dns.Route53
	objects []provision.Object
	names   []provision.Name
	removed int
}

// findOrphans looks where it is told to.
func findOrphans(ctx context.Context, o *gcOptions) (*leftovers, error) {
	regions, err := readRegions(o.regions)
	if err != nil {
		return nil, err
	}
	known, err := ownServices()
	if err != nil {
		return nil, err
	}
	g := &leftovers{}
	if g.places, err = o.clouds.places(ctx, &service.Spec{}, regions, false); err != nil {
		return nil, err
	}
	if g.objects, err = fleet.Orphans(ctx, g.places, known); err != nil || len(o.zones) == 0 {
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
		g.names = append(g.names, slices.DeleteFunc(names, func(n provision.Name) bool {
			return slices.Contains(known, fleet.Service{Name: n.Service, Owner: n.Owner})
		})...)
	}
	return g, nil
}

// remove removes names, so that nobody is led to what goes, and then the rest.
func (g *leftovers) remove(ctx context.Context, talk io.Writer) error {
	var failure error
	for _, n := range g.names {
		if err := g.zone.Set(ctx, n); err != nil {
			failure = errors.Join(failure, err)
			continue
		}
		g.removed++
		fmt.Fprintf(talk, "removed %s of %s\n", n.Name, n.Service)
	}
	err := fleet.Remove(ctx, g.places, g.objects, func(c provision.Change, p provision.Phase, _ error) {
		if p == provision.PhaseDone {
			g.removed++
			fmt.Fprintf(talk, "removed %s of %s\n", c.ID(), c.Have.Service)
		}
	})
	return errors.Join(failure, err)
}

// orphanName is a name that is left over, as the JSON has it.
type orphanName struct {
	Name    string `json:"name"`
	Zone    string `json:"zone"`
	Private bool   `json:"private"`
	Service string `json:"service"`
	Owner   string `json:"owner"`
}

// encode prints all as JSON.
func (g *leftovers) encode(out io.Writer, dryRun bool) error {
	objects, names := g.objects, []orphanName{}
	if objects == nil {
		objects = []provision.Object{}
	}
	for _, n := range g.names {
		names = append(names, orphanName{n.Name, n.Zone, n.Private, n.Service, n.Owner})
	}
	return json.NewEncoder(out).Encode(map[string]any{"orphans": objects, "names": names, "removed": g.removed, "dry_run": dryRun})
}

// readRegions reads regions of clouds.
func readRegions(texts []string) ([]service.Region, error) {
	var regions []service.Region
	for _, text := range texts {
		r := service.Region(text)
		if c := r.Cloud(); c != service.CloudAWS && c != service.CloudGCP || r.Place() == "" || r.Place() == text {
			return nil, usage(fmt.Errorf("reading --region: want aws/PLACE or gcp/PLACE, got %q", text), "")
		}
		regions = append(regions, r)
	}
	return regions, nil
}

// ownServices are the services that this machine is an operator of.
func ownServices() ([]fleet.Service, error) {
	home, err := local.OpenHome()
	if err != nil {
		return nil, err
	}
	names, err := home.Services()
	if err != nil {
		return nil, err
	}
	var known []fleet.Service
	for _, name := range names {
		svc, err := home.Service(name)
		if err != nil {
			return nil, err
		}
		who, err := openOperator(svc, false)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is not in a cloud
		}
		if err != nil {
			return nil, err
		}
		known = append(known, fleet.Service{Name: name, Owner: who.owner})
	}
	return known, nil
}

// byPlace orders objects as people look for them.
func byPlace(a, b provision.Object) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
}

// print lists what nobody here owns.
func (g *leftovers) print(w io.Writer) {
	if len(g.objects)+len(g.names) == 0 {
		fmt.Fprintln(w, "nothing is left over")
		return
	}
	t := printable.NewTable(w)
	t.Rowf("SERVICE\tREGION\tKIND\tID\tHANDLE\t$/H\tSINCE")
	var sum float64
	for _, o := range slices.SortedFunc(slices.Values(g.objects), byPlace) {
		sum += o.CostPerHour
		since := "-"
		if !o.Started.IsZero() {
			since = o.Started.UTC().Format("2006-01-02 15:04")
		}
		t.Rowf("%s\t%s\t%s\t%s\t%s\t%.4f\t%s", o.Service, o.Region, o.Kind, o.ID, o.Handle, o.CostPerHour, since)
	}
	for _, n := range g.names {
		t.Rowf("%s\t-\tname\t%s\t%s\t-\t-", n.Service, n.Name, n.Zone)
	}
	_ = t.Flush() // into a buffer or onto a screen
	fmt.Fprintf(w, "%d left over, $%.2f/h\n", len(g.objects)+len(g.names), sum)
}

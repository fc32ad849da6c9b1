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
	"text/tabwriter"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/local"
)

// gcOptions are the flags of `skyserve gc`.
type gcOptions struct {
	regions []string
	yes     bool
	dryRun  bool
	output  string
	clouds  cloudFlags
}

func newGCCmd() *cobra.Command {
	var o gcOptions
	cmd := &cobra.Command{
		Use:   "gc --region CLOUD/PLACE...",
		Short: "Find and remove what services left in clouds",
		Long: `Find the machines, firewalls and identities that carry the tags of a service of
which this machine is no operator, show them with what they cost an hour, and remove
them after asking. What carries no such tags is not looked at.

What another operator of this account runs looks the same as what was left behind:
read the list before agreeing.`,
		Example: `  skyserve gc --region aws/us-east-1 --region gcp/europe-west4 --dry-run
  skyserve gc --region aws/us-east-1 --yes -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runGC(cmd.Context(), &o, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&o.regions, "region", nil, "look in `CLOUD/PLACE`, such as aws/us-east-1 (repeatable)")
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
	regions, err := readRegions(o.regions)
	if err != nil {
		return err
	}
	known, err := ownServices()
	if err != nil {
		return err
	}
	places, err := o.clouds.places(ctx, &service.Spec{}, regions, false)
	if err != nil {
		return cloudError(err)
	}
	orphans, err := fleet.Orphans(ctx, places, known)
	if err != nil {
		return cloudError(err)
	}
	if o.output == "text" {
		printOrphans(out, orphans)
	}
	removed := 0
	if !o.dryRun && len(orphans) > 0 {
		plan := &fleet.Plan{Have: orphans, Changes: provision.Diff(nil, orphans)}
		if err := agree(in, talk, plan, o.yes); err != nil {
			return err
		}
		err = fleet.Remove(ctx, places, orphans, func(c provision.Change, p provision.Phase, _ error) {
			if p == provision.PhaseDone {
				removed++
				fmt.Fprintf(talk, "removed %s of %s\n", c.ID(), c.Have.Service)
			}
		})
	}
	if o.output == "json" {
		if orphans == nil {
			orphans = []provision.Object{}
		}
		if printing := json.NewEncoder(out).Encode(map[string]any{"orphans": orphans, "removed": removed, "dry_run": o.dryRun}); printing != nil {
			return printing
		}
	}
	if err != nil && removed > 0 {
		return &exitError{code: exitPartial, err: err, hint: "run it again"}
	}
	return cloudError(err)
}

// readRegions reads regions of clouds.
func readRegions(texts []string) ([]service.Region, error) {
	if len(texts) == 0 {
		return nil, usage(errors.New("--region: missing: where should be looked?"), "--region aws/us-east-1, as often as there are regions")
	}
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

// printOrphans lists what nobody here owns.
func printOrphans(w io.Writer, orphans []provision.Object) {
	if len(orphans) == 0 {
		fmt.Fprintln(w, "nothing is left over")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tREGION\tKIND\tID\tHANDLE\t$/H\tSINCE")
	var sum float64
	for _, o := range slices.SortedFunc(slices.Values(orphans), byPlace) {
		sum += o.CostPerHour
		since := "-"
		if !o.Started.IsZero() {
			since = o.Started.UTC().Format("2006-01-02 15:04")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%.4f\t%s\n", o.Service, o.Region, o.Kind, o.ID, o.Handle, o.CostPerHour, since)
	}
	_ = t.Flush() // into a buffer or onto a screen
	fmt.Fprintf(w, "%d left over, $%.2f/h\n", len(orphans), sum)
}

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"skyserve/internal/service"
	"skyserve/provision/cloud"
)

// rehearsalSuffix is the end of the name of a rehearsal's service.
const rehearsalSuffix = "-rehearsal"

// maxServiceName is the maximum length of a service's name.
const maxServiceName = 40

// rehearsalModel is the model of a rehearsal's service.
const rehearsalModel = "rehearsal"

// envRehearsalKey is the environment variable of this process with the API key of a rehearsal.
const envRehearsalKey = "SKYSERVE_REHEARSAL_KEY"

// rehearsalName returns the name of the service that rehearses another. A name that is too long is truncated and has a
// hash, as the names of roles and service accounts have: no two services share a rehearsal.
func rehearsalName(name string) string {
	const maxLength, digits = maxServiceName - len(rehearsalSuffix), 6
	if len(name) <= maxLength {
		return name + rehearsalSuffix
	}
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:maxLength-1-digits], "-") + "-" + hex.EncodeToString(sum[:])[:digits] + rehearsalSuffix
}

// rehearsalRegions returns the rented regions of a service that a rehearsal uses: the first of each
// cloud, or all.
func rehearsalRegions(spec *service.Spec, all bool) []service.RegionSpec {
	var regions []service.RegionSpec
	for _, r := range spec.Regions {
		rented := slices.Contains(cloud.Regions(spec), r.Name)
		known := slices.ContainsFunc(regions, func(other service.RegionSpec) bool { return other.Name.Cloud() == r.Name.Cloud() })
		if rented && (all || !known) {
			regions = append(regions, r)
		}
	}
	return regions
}

// rehearsalSpec derives the service that rehearses another: one balancer and one simulated engine on
// machines without GPUs in each region, with the region's network, subnets and access. Service
// accounts of Google are the default ones of the new name, because an account may launch replicas of one
// service only. tls has the files of a throw-away certificate; nil where the service serves plain HTTP. It
// returns the service and its file.
func rehearsalSpec(spec *service.Spec, regions []service.RegionSpec, withName bool, tls *service.TLS) (*service.Spec, []byte, error) {
	r := &service.Spec{
		Name:     rehearsalName(spec.Name),
		Models:   []service.Model{{Name: rehearsalModel, Engine: service.Engine{Kind: service.EngineSim}}},
		Balancer: service.BalancerSpec{Auth: &service.Auth{KeysFrom: "env:" + envRehearsalKey}, TLS: tls, Insecure: tls == nil},
	}
	for _, of := range regions {
		r.Regions = append(r.Regions, service.RegionSpec{
			Name: of.Name, Balancers: 1, Replicas: service.Bounds{Min: 1, Max: 1}, Capacity: []service.CapacityType{service.CapacityOnDemand},
			Network: of.Network, Subnets: of.Subnets, Access: of.Access,
		})
	}
	if withName {
		r.DNS = &service.DNS{Provider: service.DNSRoute53, Name: r.Name + "." + spec.DNS.Zone, Zone: spec.DNS.Zone, Private: spec.DNS.Private}
	}
	text, err := service.Marshal(r)
	if err != nil {
		return nil, nil, err
	}
	full, err := service.Parse(r.Name+".yaml", text) // fills the defaults in
	if err != nil {
		return nil, nil, fmt.Errorf("deriving the rehearsal of %s: %w", spec.Name, err)
	}
	return full, text, nil
}

// checkRehearsable rejects a service that cannot be rehearsed.
func (o *doctorOptions) checkRehearsable(spec *service.Spec) error {
	switch {
	case !cloud.UsesClouds(spec):
		return usage(fmt.Errorf("--rehearse: %s has no region of a cloud", spec.Name), "a service without cloud regions costs nothing: run 'skyserve up "+o.file+"'")
	case o.dns && (spec.DNS == nil || spec.DNS.Provider != service.DNSRoute53):
		return usage(fmt.Errorf("--dns: %s has no name in Route 53 (dns.provider: route53)", spec.Name), "run it without --dns, or add dns to the file")
	}
	return nil
}

// registerRehearsalFlags registers the flags of --rehearse.
func (o *doctorOptions) registerRehearsalFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&o.rehearse, "rehearse", false, "deploy a temporary service (costs cents), test it and delete it")
	flags.BoolVar(&o.yes, "yes", false, "skip the confirmation of --rehearse")
	flags.DurationVar(&o.timeout, "timeout", defaultRehearsalTimeout, "maximum duration of --rehearse; then it stops and deletes everything")
	flags.StringVar(&o.report, "report", "", "write the report of --rehearse to `FILE` (default: in $SKYSERVE_HOME/rehearsals, by default ~/.local/state/skyserve/rehearsals)")
	flags.StringVar(&o.regions, "regions", regionsFirst, "the regions of --rehearse: first (one per cloud) or all")
	flags.BoolVar(&o.dns, "dns", false, "let --rehearse publish the name NAME-rehearsal in the DNS zone of service.yaml")
	flags.StringVar(&o.programURL, "program", "", "`FILE` or URL of the skyserve binary for VMs, as in 'skyserve up'")
}

// The values of --regions.
const (
	regionsFirst = "first"
	regionsAll   = "all"
)

// checkRehearsalFlags rejects flags of --rehearse without it, and invalid values.
func (o *doctorOptions) checkRehearsalFlags(flags *pflag.FlagSet) error {
	var foreign error
	for _, name := range []string{"yes", "timeout", "report", "regions", "dns"} {
		if flags.Changed(name) && !o.rehearse && foreign == nil {
			foreign = usage(fmt.Errorf("--%s requires --rehearse", name), "")
		}
	}
	switch {
	case foreign != nil:
		return foreign
	case o.timeout <= 0:
		return usage(fmt.Errorf("--timeout: must be greater than 0, got %s", o.timeout), "")
	case o.regions != regionsFirst && o.regions != regionsAll:
		return usage(fmt.Errorf("--regions: must be one of first, all, got %q", o.regions), "")
	}
	return nil
}

// confirmRehearsal shows the changes and the maximum cost of a rehearsal and prompts for confirmation.
func (r *rehearsal) confirmRehearsal(in io.Reader, u *upRun) error {
	printChanges(r.errOut, r.name, u.changes)
	printPlainHTTP(r.errOut, u.spec)
	_, r.perHour = u.changes.CostPerHour()
	r.unpriced = slices.ContainsFunc(u.changes.Changes, isPriceUnknown)
	fmt.Fprintln(r.errOut, r.costText())
	fmt.Fprintf(r.errOut, "If this process is killed (kill -9, power failure), the machines stay and are billed. These commands delete them:\n  %s\n", r.cleanupCommands())
	if r.o.yes {
		return nil
	}
	err := confirmAction(in, r.errOut, "rents machines")
	if errors.Is(err, errDeclined) {
		r.declined = true
	}
	return err
}

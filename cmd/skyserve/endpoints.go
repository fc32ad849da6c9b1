package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"skyserve/internal/controller/fleet"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/local"
)

// runningEndpoints is the public base URL of one balancer in each region of a
// running service, by the region's place (us, eu). An empty name means the only
// service that exists.
func runningEndpoints(name string) (map[string]string, error) {
	svc, balancers, err := runningBalancers(name)
	if err != nil {
		return nil, err
	}
	spec, err := deployedSpec("", svc)
	if err != nil {
		return nil, err
	}
	endpoints := map[string]string{}
	for _, o := range balancers {
		if _, has := endpoints[o.Region.Place()]; !has && spec != nil {
			endpoints[o.Region.Place()] = fleet.PublicURL(spec, o)
		}
	}
	if len(endpoints) == 0 {
		return nil, noBalancer(svc)
	}
	return endpoints, nil
}

// findAdmins is the admin APIs at the URLs of --admin or, where there is none, of
// a service's balancers that run, with that service's name.
func findAdmins(name string, urls []string) (service string, admins []*telemetry.Client, err error) {
	if len(urls) == 0 {
		return runningAdmins(name)
	}
	for _, u := range urls {
		base := strings.TrimSpace(u)
		if base == "" {
			return "", nil, usage(fmt.Errorf("reading --admin: want a URL, got %q", u), "")
		}
		hc, err := adminHTTP(name, base)
		if err != nil {
			return "", nil, err
		}
		admins = append(admins, telemetry.NewClient(base, hc))
	}
	return name, admins, nil
}

// runningAdmins is the name of a running service and its balancers' admin APIs,
// that of the file's first balancer first; of one that runs elsewhere, those that this
// machine was connected to. An empty name means the only service that exists.
func runningAdmins(name string) (service string, admins []*telemetry.Client, err error) {
	svc, balancers, err := runningBalancers(name)
	if err != nil {
		return "", nil, err
	}
	token, err := svc.AdminToken()
	if err != nil {
		return "", nil, err
	}
	hc := telemetry.HTTPClient(token)
	for _, o := range balancers {
		if o.Admin != "" {
			admins = append(admins, telemetry.NewClient(o.Admin, hc))
		}
	}
	if len(admins) > 0 {
		return svc.Name(), admins, nil
	}
	kept, err := keptAdmins(svc)
	if err != nil {
		return "", nil, err
	}
	if len(kept) == 0 {
		return "", nil, noBalancer(svc)
	}
	return findAdmins(svc.Name(), kept)
}

// runningBalancers lists the live balancers of a service by address.
func runningBalancers(name string) (local.Service, []provision.Object, error) {
	svc, err := findService(name)
	if err != nil {
		return local.Service{}, nil, err
	}
	objects, err := svc.Objects()
	if err != nil {
		return local.Service{}, nil, err
	}
	return svc, local.Running(objects, provision.KindBalancer), nil
}

// findService finds a service by name, or the only one there is, and advises
// where there is none or no telling which.
func findService(name string) (local.Service, error) {
	home, err := local.OpenHome()
	if err != nil {
		return local.Service{}, err
	}
	svc, err := home.Find(name)
	var none *local.NoServiceError
	var which *local.WhichServiceError
	switch {
	case errors.As(err, &none):
		return svc, failed(err, "bring one up: skyserve up SERVICE.yaml")
	case errors.As(err, &which):
		return svc, usage(err, "say which one")
	}
	return svc, err
}

func noBalancer(svc local.Service) error {
	return failed(fmt.Errorf("no balancer of %s is running", svc.Name()),
		"repair it: skyserve up "+svc.SpecFile())
}

// argsBetween refuses a count of arguments other than least to most; form shows
// what was expected.
func argsBetween(least, most int, form string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usage(fmt.Errorf("reading the arguments: want %s, got %q", cmp.Or(form, "none"), args),
				"run '"+cmd.CommandPath()+" --help' for an example")
		}
		return nil
	}
}

// noArgs refuses any argument.
func noArgs(cmd *cobra.Command, args []string) error { return argsBetween(0, 0, "")(cmd, args) }

// checkOutput refuses a format other than text and json.
func checkOutput(format string) error {
	if format != "text" && format != "json" {
		return usage(fmt.Errorf("-o %s: want text or json", format), "")
	}
	return nil
}

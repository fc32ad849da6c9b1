package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/telemetry"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// runningEndpoints returns the public base URL of one balancer in each region of a running service,
// by the region's place (us, eu). An empty name selects the only service.
func runningEndpoints(name string) (map[string]string, error) {
	svc, balancers, err := runningBalancers(name)
	if err != nil {
		return nil, err
	}
	return endpointsOf(svc, balancers)
}

// endpointsOf returns the public base URL of one balancer in each region of a service.
func endpointsOf(svc local.Service, balancers []provision.Object) (map[string]string, error) {
	spec, err := deployedSpec("", svc)
	if err != nil {
		return nil, err
	}
	if spec == nil && len(balancers) > 0 {
		return nil, failed(fmt.Errorf("finding the URLs of %s: %s", svc.Name(), specProblem(svc)), "")
	}
	endpoints := map[string]string{}
	for _, o := range balancers {
		if _, has := endpoints[o.Region.ShortName()]; !has {
			endpoints[o.Region.ShortName()] = deploy.PublicURL(spec, o)
		}
	}
	if len(endpoints) == 0 && spec != nil && cloud.UsesClouds(spec) {
		return nil, usage(fmt.Errorf("the balancers of %s run on machines in clouds", svc.Name()),
			fmt.Sprintf("pass --target with the URLs that 'skyserve status %s' shows", svc.Name()))
	}
	switch {
	case len(endpoints) > 0:
		return endpoints, nil
	case isJoined(svc): // balancers know the addresses at which they listen, which clients need not reach
		return nil, usage(fmt.Errorf("finding the URLs of %s: it was deployed from another machine", svc.Name()),
			"pass --target with the public URL of a balancer: 'skyserve status' on that machine shows it")
	}
	return nil, noBalancer(svc)
}

// findAdmins returns clients for the admin URLs of --admin or, without any, for all balancers of a running service,
// and the service's name. An empty name selects the only service.
func findAdmins(ctx context.Context, name string, urls []string) (service string, admins []*telemetry.Client, err error) {
	if len(urls) > 0 {
		admins, err = dialAdmins(name, urls)
		return name, admins, err
	}
	service, admins, complete, err := knownAdmins(name)
	if err != nil || complete {
		return service, admins, err
	}
	admins, err = listAdmins(ctx, service, admins)
	return service, admins, err
}

// listAdmins returns clients for all balancers of a service, of which admins may be a part: the one that responds first,
// and those that it lists. If none responds, it returns admins, and the caller's own request fails.
func listAdmins(ctx context.Context, service string, admins []*telemetry.Client) ([]*telemetry.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	type report struct {
		admin    *telemetry.Client
		self     string
		snapshot *telemetry.Snapshot
	}
	from, err := fetchReport(ctx, "balancers", admins,
		func(ctx context.Context, c *telemetry.Client) (*report, error) {
			memory, err := c.Decisions(ctx) // names the balancer
			if err != nil {
				return nil, err
			}
			s, err := c.OwnSnapshot(ctx)
			return &report{c, memory.Balancer, s}, err
		},
		func(*report) bool { return true },
		func(_, _ *report) bool { return false })
	if err != nil {
		return admins, nil
	}
	var others []string
	for _, r := range from.snapshot.Regions {
		for _, b := range r.Balancers {
			if b.ID != from.self && b.Admin != "" {
				others = append(others, b.Admin)
			}
		}
	}
	listed, err := dialAdmins(service, others)
	return append([]*telemetry.Client{from.admin}, listed...), err
}

// dialAdmins returns clients for admin URLs.
func dialAdmins(name string, urls []string) (admins []*telemetry.Client, err error) {
	for _, u := range urls {
		base := strings.TrimSpace(u)
		if base == "" {
			return nil, usage(fmt.Errorf("--admin: must be a URL, got %q", u), "")
		}
		hc, err := adminHTTP(name, base)
		if err != nil {
			return nil, err
		}
		admins = append(admins, telemetry.NewClient(base, hc))
	}
	return admins, nil
}

// hintAdmin is the hint for an address of --admin that is not that of a balancer.
const hintAdmin = "--admin takes the address of a balancer for operators, not the one for clients: \"skyserve status -o jsonpath='{.regions[*].balancers[*].admin}'\" prints it; 'skyserve lb' has it as --admin"

// hintSlowAdmin is the hint for an address of --admin that does not respond in time.
const hintSlowAdmin = "the balancer at --admin hangs or its machine is overloaded, or it is the address of another machine: read the balancer's log"

// hintStatus is the hint for a service whose balancers do not respond. Where the service was joined by connect, status cannot
// find its machines.
const hintStatus = "'skyserve status', on the machine that deployed the service, shows whether it is running"

// adminHint returns hintAdmin if nothing responds at the addresses of --admin, or a server without this API does,
// hintSlowAdmin after a timeout, and else "".
func adminHint(admins []string, err error) string {
	var network net.Error
	if len(admins) > 0 && errors.As(err, &network) && network.Timeout() {
		return hintSlowAdmin
	}
	noSuchAPI := errors.Is(err, telemetry.ErrNotFound) && !errors.Is(err, telemetry.ErrNoStore)
	if len(admins) > 0 && (errors.As(err, &network) || noSuchAPI) {
		return hintAdmin
	}
	return ""
}

// withAdminHint replaces the hint of an error that has one with adminHint if nothing responds at an address of --admin. A
// server that responds says itself what to do.
func withAdminHint(err error, admins []string) error {
	var network net.Error
	var hinted *exitError
	if hint := adminHint(admins, err); hint != "" && errors.As(err, &network) && errors.As(err, &hinted) {
		return failed(hinted.err, hint)
	}
	return err
}

// knownAdmins returns the name of a running service and clients for the admin APIs of the balancers that this machine
// knows, in the order in which these were added. They are complete for balancers on this machine; others are those of the
// last `up` on this machine, or the one given to connect. An empty name selects the only service.
func knownAdmins(name string) (service string, admins []*telemetry.Client, complete bool, err error) {
	svc, balancers, err := runningBalancers(name)
	if err != nil {
		return "", nil, false, err
	}
	token, err := svc.AdminToken()
	if err != nil {
		return "", nil, false, err
	}
	hc := telemetry.HTTPClient(token)
	for _, o := range balancers {
		if o.Admin != "" {
			admins = append(admins, telemetry.NewClient(o.Admin, hc))
		}
	}
	if len(admins) > 0 {
		return svc.Name(), admins, true, nil
	}
	kept, err := loadAdminURLs(svc)
	if err != nil {
		return "", nil, false, err
	}
	if len(kept) == 0 {
		return "", nil, false, noBalancer(svc)
	}
	admins, err = dialAdmins(svc.Name(), kept)
	return svc.Name(), admins, false, err
}

// runningBalancers returns the running local balancers of a service.
func runningBalancers(name string) (local.Service, []provision.Object, error) {
	svc, err := findService(name)
	if err != nil {
		return local.Service{}, nil, err
	}
	objects, err := svc.Objects()
	if err != nil {
		return local.Service{}, nil, err
	}
	return svc, local.RunningObjects(objects, provision.KindBalancer), nil
}

// findService finds a service by name. If name is empty, it is the service of the configuration file, else the
// only service.
func findService(name string) (local.Service, error) {
	source := ""
	if name == "" {
		var err error
		if name, source, err = defaultService(); err != nil {
			return local.Service{}, err
		}
	}
	home, err := local.OpenHome()
	if err != nil {
		return local.Service{}, err
	}
	svc, err := home.Find(name)
	var none *local.NoServiceError
	var which *local.SeveralServicesError
	switch {
	case errors.As(err, &none):
		return svc, serviceNotFound(none, source)
	case errors.As(err, &which):
		return svc, usage(err, "pass --service NAME")
	}
	return svc, err
}

// serviceNotFound returns the error of a service that does not exist. source is the setting that names it, if any.
func serviceNotFound(none *local.NoServiceError, source string) error {
	similar, ext := didYouMean(none.Name, none.Exist), filepath.Ext(none.Name)
	switch {
	case source != "":
		return notFound(fmt.Errorf("%s: %w", source, none), strings.TrimSpace(similar+" correct or unset "+source))
	case ext == ".yaml" || ext == ".yml":
		return notFound(none, "pass the name of the service, which its file contains, instead of the path")
	}
	if similar != "" {
		return notFound(none, similar)
	}
	return &exitError{
		code: exitFailed, err: none, noService: true,
		hint: "create one: skyserve up SERVICE.yaml; manage one of another machine: 'skyserve connect URL --invite' there prints the command to run here",
	}
}

// hintStandalone adds to the hint of a command that found no service how to reach a balancer of `skyserve lb`, which
// belongs to none: with the command's own flag, if it has one.
func hintStandalone(cmd *cobra.Command, err error) {
	var e *exitError
	if !errors.As(err, &e) || !e.noService {
		return
	}
	way := "a balancer of 'skyserve lb' alone is no service: 'skyserve top --admin URL' shows it"
	for _, name := range []string{"admin", "target"} {
		if flag := cmd.Flags().Lookup(name); flag != nil {
			value, _ := pflag.UnquoteUsage(flag)
			way = "for a balancer of 'skyserve lb' alone, pass --" + name + " " + value
			break
		}
	}
	e.hint += "; " + way
}

func noBalancer(svc local.Service) error {
	return failed(fmt.Errorf("no balancer of %s is running on this machine", svc.Name()),
		"repair it: skyserve up "+upFile(svc))
}

// upFile returns the argument of the `up` that repairs a service: the file that is stored with it. Without one, after an
// `up` that was killed early, only the operator knows the path.
func upFile(svc local.Service) string {
	file := svc.SpecFile()
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return "SERVICE.yaml"
	}
	return file
}

// argsBetween accepts minimum to maximum arguments; form shows them in the error.
func argsBetween(minimum, maximum int, form string) cobra.PositionalArgs {
	expected := "no arguments"
	switch {
	case maximum == 1 && minimum == 1:
		expected = "1 argument: " + form
	case maximum == 1:
		expected = "at most 1 argument: " + form
	case minimum == maximum && maximum > 1:
		expected = fmt.Sprintf("%d arguments: %s", minimum, form)
	case maximum > 1:
		expected = fmt.Sprintf("%d to %d arguments: %s", minimum, maximum, form)
	}
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < minimum || len(args) > maximum {
			verb := "accepts"
			if len(args) < minimum {
				verb = "requires"
			}
			received := strconv.Itoa(len(args))
			if maximum == 0 {
				received = strconv.Quote(strings.Join(args, " "))
			}
			return usage(fmt.Errorf("%s %s; received %s", verb, expected, received),
				"run '"+cmd.CommandPath()+" --help' for an example")
		}
		for i, arg := range args {
			if strings.TrimSpace(arg) == "" {
				which := strings.Trim(form, "[]")
				if maximum > 1 {
					which = fmt.Sprintf("%d of %s", i+1, form)
				}
				return usage(fmt.Errorf("argument %s must not be empty", which), "check the variable or command that it comes from")
			}
		}
		return nil
	}
}

// noArgs accepts no arguments. An argument of a command with subcommands is an unknown command.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && cmd.HasAvailableSubCommands() {
		return unknownCommand(cmd, args[0])
	}
	return argsBetween(0, 0, "")(cmd, args)
}

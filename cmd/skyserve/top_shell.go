package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/gcp"
	"skyserve/provision/local"
)

// Shell returns the command that opens a shell on a machine in the usual way of its provider.
func (o *topOperator) Shell(ctx context.Context, id string) (*exec.Cmd, error) {
	doing := "opening a shell on " + id
	svc, err := o.localService()
	if err != nil {
		return nil, fmt.Errorf("%s: %w; run 'skyserve top' on the machine from which it was deployed", doing, err)
	}
	view, err := openView(ctx, &o.clouds, svc, doing)
	if err != nil {
		return nil, withHint(err)
	}
	listing, err := view.inspector.List(ctx)
	if err != nil {
		return nil, withHint(cloudError(err))
	}
	machines := listing.Machines()
	at := slices.IndexFunc(machines, func(m provision.Object) bool { return m.ID == id })
	if at >= 0 {
		m := machines[at]
		project := ""
		if m.Region.Cloud() == service.CloudGCP {
			if project, err = gcp.New(o.clouds.googleConfig([]string{m.Region.ShortName()}, view.spec)).Project(ctx); err != nil {
				return nil, withHint(cloudError(err))
			}
		}
		return shellOf(svc, m, project)
	}
	if s := o.snapshot(); s != nil {
		for _, r := range s.Regions {
			for i := range r.Replicas {
				if rep := &r.Replicas[i]; rep.ID == id && r.Name.Cloud() == service.CloudStatic {
					return sshTo(rep.URL)
				}
			}
		}
	}
	return nil, fmt.Errorf("%s: it has no machine", doing)
}

// shellOf returns the command for a machine: on this computer a shell in the machine's directory, otherwise the
// command line of its cloud. project is that of the machine in Google Cloud.
func shellOf(svc local.Service, m provision.Object, project string) (*exec.Cmd, error) {
	switch {
	case cloud.RunsOnThisComputer(m.Region):
		cmd := exec.Command(cmp.Or(os.Getenv("SHELL"), "/bin/sh"))
		cmd.Dir = svc.MachineDir(m.ID)
		cmd.Env = append(os.Environ(), "SKYSERVE_MACHINE="+m.ID)
		return cmd, nil
	case m.Handle == "":
		return nil, fmt.Errorf("opening a shell on %s: the machine is not running", m.ID)
	case m.Region.Cloud() == service.CloudAWS:
		return exec.Command("aws", "ssm", "start-session", "--region", m.Region.ShortName(), "--target", m.Handle), nil
	case m.Region.Cloud() == service.CloudGCP:
		zone, rest, _ := strings.Cut(m.Handle, "/")
		name, _, _ := strings.Cut(rest, "/")
		return exec.Command("gcloud", "compute", "ssh", name, "--zone", zone, "--project", project), nil
	}
	return nil, fmt.Errorf("opening a shell on %s: region %s has no command for it", m.ID, m.Region)
}

// sshTo returns the ssh command for the host of a URL.
func sshTo(address string) (*exec.Cmd, error) {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || !isSSHHost(u.Hostname()) {
		return nil, errors.New("opening a shell: the URL has no host: " + address)
	}
	return exec.Command("ssh", u.Hostname()), nil
}

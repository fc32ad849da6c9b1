package main

import (
	"cmp"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skyserve/internal/atomicfile"
	"skyserve/internal/identity"
	"skyserve/internal/telemetry"
	"skyserve/provision/local"
)

// connectPoll is the polling interval of a mailbox.
const connectPoll = 500 * time.Millisecond

// connectFlags are the flags of `skyserve connect`.
type connectFlags struct {
	url, code, service, as, revoke string
	invite, list                   bool
	clouds                         cloudFlags
	// out are the output flags of --list and --revoke.
	out outputFlags
}

func newConnectCmd() *cobra.Command {
	var f connectFlags
	cmd := &cobra.Command{
		Use:   "connect [URL]",
		Short: "Join as an operator; invite, list and revoke operators",
		Long: `Make the user of this machine an operator of a running service, through the admin
address of any of its balancers.

On the machine from which the service was deployed, run 'connect URL --invite' and pass the
printed code to the new operator; the command waits up to 15 minutes for the other machine
and signs its certificate. On the other machine, run 'connect URL --code CODE' with a URL of
the same balancer: no other one knows the code. A code works once. The code identifies the
service's certificate authority, which prevents man-in-the-middle attacks. The certificate
is valid for 90 days; to renew it, repeat both commands with a new code. On the other
machine, top, events, explain, usage and plan work, with all balancers that it can connect
to; load and batch need --target URL. Commands that observe or change machines, such as
status, replica, plan --apply and up, also need the service.yaml of a service in clouds; run
those for a service without cloud regions on the machine that deployed it.

On the machine from which the service was deployed, 'connect --list' shows the certificates
of operators and that of the controllers, which share one, and 'connect --revoke
NAME|FINGERPRINT' revokes one: all machines receive the revocation list and reject the
certificate within a minute. The next 'up' updates machines that did not respond, and
issues a new certificate to a controller whose certificate was revoked.`,
		Example: `  skyserve connect https://203.0.113.7:8443 --invite
  skyserve connect https://203.0.113.7:8443 --code CODE
  skyserve connect --list
  skyserve connect --revoke bob@laptop`,
		Args: argsBetween(0, 1, "URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkConnectFlags(cmd.Flags(), f); err != nil {
				return err
			}
			if f.list || f.revoke != "" {
				return runOperators(cmd, f, args)
			}
			if len(args) == 0 {
				return usage(errors.New("requires 1 argument: the admin URL of a balancer"), "run 'skyserve status -o json' on the machine from which the service was deployed; the field admin of each balancer is its admin URL")
			}
			f.url = strings.TrimRight(args[0], "/")
			return runConnect(cmd, f)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.invite, "invite", false, "invite an operator: print a code, wait, and sign the certificate")
	flags.StringVar(&f.code, "code", "", "the `CODE` printed by --invite")
	flags.StringVar(&f.service, "service", "", "`NAME` of the service (default: the one in config.yaml, else the only one)")
	flags.StringVar(&f.as, "as", "", "with --code: `NAME` of the new operator (default user@host of this machine)")
	flags.BoolVar(&f.list, "list", false, "list the certificates of a service that was deployed from this machine: those of its operators, and the one that its controllers share, with the delegated authority that certifies new machines")
	flags.StringVar(&f.revoke, "revoke", "", "revoke the operator or controller `NAME|FINGERPRINT`")
	f.out.registerList(cmd)
	f.clouds.registerFlags(flags)
	return cmd
}

// checkConnectFlags rejects flags that have no effect on what the other flags select.
func checkConnectFlags(given *pflag.FlagSet, f connectFlags) error {
	switch {
	case f.as != "" && f.code == "":
		return usage(errors.New("--as: valid only with --code"), "the new operator passes --as with --code on the other machine")
	case f.service != "" && f.code != "":
		return usage(errors.New("--service: cannot be combined with --code, which determines the service"), "")
	case f.list || f.revoke != "":
		return nil
	}
	for _, name := range []string{"output", "no-headers"} {
		if given.Changed(name) {
			return usage(fmt.Errorf("--%s: valid only with --list and --revoke", name), "")
		}
	}
	return nil
}

func runConnect(cmd *cobra.Command, f connectFlags) error {
	if rest, isPlain := strings.CutPrefix(f.url, "http://"); isPlain { // as status shows that of a local service
		f.url = "https://" + rest
	}
	switch {
	case !strings.HasPrefix(f.url, "https://"):
		return usage(fmt.Errorf("URL: must be the URL of a balancer's admin address, such as https://HOST:PORT, got %q", f.url), "take 'admin' of a balancer from 'skyserve status -o json' on the machine from which the service was deployed")
	case f.invite == (f.code != ""):
		return usage(errors.New("requires either --invite or --code"), "run 'skyserve connect URL --invite' on the machine from which the service was deployed, then 'skyserve connect URL --code CODE' here")
	case f.invite:
		return runInvite(cmd, f)
	}
	return runAccept(cmd, f)
}

// runInvite prints a code and signs a certificate for the operator who presents it.
func runInvite(cmd *cobra.Command, f connectFlags) error {
	svc, err := findService(f.service)
	if err != nil {
		return err
	}
	authority, err := identityOf(svc).Authority()
	if errors.Is(err, fs.ErrNotExist) {
		return &exitError{code: exitCredentials, err: fmt.Errorf("inviting to %s: its certificate authority is not on this machine", svc.Name()), hint: "run this on the machine from which the service was deployed"}
	}
	if err != nil {
		return err
	}
	self, err := identityOf(svc).OperatorParty(operatorName(), time.Now())
	if err != nil {
		return err
	}
	api := telemetry.NewClient(f.url, telemetry.SecureClient(self.Client(identity.Balancer)))
	invite := identity.NewInvite(authority)
	if err := api.OpenInvite(cmd.Context(), invite.Mailbox()); err != nil {
		hint := ""
		if network := net.Error(nil); errors.As(err, &network) {
			hint = fmt.Sprintf("the URL must be the admin address of a balancer that runs: 'skyserve status %[1]s' shows which ones do, \"skyserve status %[1]s -o jsonpath='{.regions[*].balancers[*].admin}'\" the addresses", svc.Name())
		}
		return failed(fmt.Errorf("inviting to %s: %w", svc.Name(), err), hint)
	}
	if host, ok := loopbackHost(f.url); ok {
		printMessage(cmd.ErrOrStderr(), labelWarning, "other machines cannot reach %s, which is an address of this machine only; on the other machine, first forward its port from this one: ssh -N -L %s:%s HOST", host, host, host)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Run on the other machine within %s:\n\n", telemetry.InviteTTL)
	fmt.Fprintf(cmd.OutOrStdout(), "skyserve connect %s --code %s\n", f.url, invite.Text())
	fmt.Fprintln(cmd.ErrOrStderr(), "\nWaiting for the new operator. Anyone with the code can become an operator: send it over a trusted channel.")
	who, ends, err := signInvited(cmd.Context(), api, invite, authority, identityOf(svc).Record)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), closeTimeout)
		defer cancel()
		if cmd.Context().Err() != nil {
			if err := api.CloseInvite(ctx, invite.Mailbox()); err != nil {
				printMessage(cmd.ErrOrStderr(), labelWarning, "the code works until it expires: closing the invitation: %v", err)
			}
			return fmt.Errorf("inviting to %s: %w", svc.Name(), context.Canceled)
		}
		return failed(errors.Join(fmt.Errorf("inviting to %s: %w", svc.Name(), err), api.CloseInvite(ctx, invite.Mailbox())), "retry with --invite")
	}
	recordOperator(cmd.Context(), svc, cmd.ErrOrStderr(), who.ID, fmt.Sprintf("%s is an operator until %s", who.ID, ends.UTC().Format(time.DateOnly)))
	fmt.Fprintf(cmd.ErrOrStderr(), "%s is an operator of %s; the certificate expires %s.\n", who.ID, svc.Name(), ends.Format(time.DateOnly))
	return nil
}

// loopbackHost returns the host and port of a URL; ok is true if only this machine reaches them.
func loopbackHost(text string) (host string, ok bool) {
	u, err := url.Parse(text)
	if err != nil {
		return "", false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Host, u.Hostname() == "localhost" || err == nil && addr.IsLoopback()
}

// closeTimeout bounds the request that closes an invitation, which also expires by itself.
const closeTimeout = 3 * time.Second

// signInvited waits for the invited operator's request, signs it and records the certificate.
// The response stays in the mailbox after this process has ended.
func signInvited(ctx context.Context, api *telemetry.Client, invite identity.Invite, authority *identity.Authority, record func(*x509.Certificate) error) (who identity.Name, ends time.Time, err error) {
	var request *telemetry.InviteRequest
	err = poll(ctx, func(ctx context.Context) (done bool, err error) {
		request, err = api.InviteRequest(ctx, invite.Mailbox())
		return request != nil, err
	})
	if err != nil {
		return who, ends, err
	}
	chain, err := invite.Accept(authority, request.CSR, request.Proof, time.Now())
	if err != nil {
		refusal := telemetry.InviteAnswer{Refused: err.Error()}
		return who, ends, errors.Join(err, api.PutInviteAnswer(ctx, invite.Mailbox(), refusal))
	}
	if who, err = identity.NameOf(chain[0]); err == nil {
		err = record(chain[0])
	}
	if err == nil {
		err = api.PutInviteAnswer(ctx, invite.Mailbox(), telemetry.InviteAnswer{Chain: string(identity.EncodeChain(chain))})
	}
	return who, chain[0].NotAfter, err
}

// poll calls request until it is done, fails, or ctx ends.
func poll(ctx context.Context, request func(context.Context) (done bool, err error)) error {
	ticker := time.NewTicker(connectPoll)
	defer ticker.Stop()
	for {
		done, err := request(ctx)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// runAccept requests a certificate with a code, and stores it.
func runAccept(cmd *cobra.Command, f connectFlags) error {
	invite, err := identity.ParseInvite(f.code)
	if err != nil {
		return usage(fmt.Errorf("--code: %w", err), "")
	}
	key, err := identity.NewKey()
	if err != nil {
		return err
	}
	chain, err := requestCertificate(cmd.Context(), f, invite, key)
	if err != nil {
		hint := "request another invitation: a code works once, for 15 minutes, at one balancer"
		switch {
		case errors.Is(err, http.ErrSchemeMismatch):
			hint = "it responds without TLS: pass the URL of the balancer at which --invite was run"
		case errors.As(err, new(*net.OpError)):
			hint = "check the URL: 'skyserve status -o json' on the machine from which the service was deployed shows the admin URL of each balancer"
		}
		return failed(fmt.Errorf("connecting to %s: %w", f.url, err), hint)
	}
	who, err := invite.VerifyChain(chain, key, time.Now())
	if err != nil {
		return failed(fmt.Errorf("connecting to %s: %w", f.url, err), "")
	}
	home, err := local.OpenHome()
	if err != nil {
		return err
	}
	svc, err := home.Service(who.Service)
	if err != nil {
		return err
	}
	if err := identityOf(svc).KeepOperator(chain, key); err != nil {
		return failed(err, "")
	}
	if err := storeAdminURLs(svc, f.url); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s is an operator of %s; the certificate expires %s\n", who.ID, who.Service, chain[0].NotAfter.Format(time.DateOnly))
	return nil
}

// requestCertificate posts a signing request to the mailbox of an invitation and waits for
// the response.
func requestCertificate(ctx context.Context, f connectFlags, invite identity.Invite, key crypto.Signer) ([]*x509.Certificate, error) {
	csr, proof, err := invite.Request(key, cmp.Or(f.as, operatorName()))
	if err != nil {
		return nil, err
	}
	hc := telemetry.SecureClient(identity.ToOwner(invite.Owner(), time.Now(), identity.Balancer))
	defer hc.CloseIdleConnections()
	api := telemetry.NewClient(f.url, hc)
	if err := api.PutInviteRequest(ctx, invite.Mailbox(), telemetry.InviteRequest{CSR: csr, Proof: proof}); err != nil {
		return nil, err
	}
	var reply *telemetry.InviteAnswer
	err = poll(ctx, func(ctx context.Context) (done bool, err error) {
		reply, err = api.InviteAnswer(ctx, invite.Mailbox())
		return reply != nil, err
	})
	switch {
	case err != nil:
		return nil, err
	case reply.Refused != "":
		return nil, errors.New(reply.Refused)
	}
	return identity.ParseChain([]byte(reply.Chain))
}

// storeAdminURLs stores the admin URLs of a service.
func storeAdminURLs(svc local.Service, urls ...string) error {
	text, err := json.Marshal(urls)
	if err != nil {
		return err
	}
	return identity.WriteFile(adminsFile(svc), text)
}

// loadAdminURLs returns the admin URLs given to connect, if any.
func loadAdminURLs(svc local.Service) (urls []string, err error) {
	text, err := os.ReadFile(adminsFile(svc))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = atomicfile.DecodeJSON(adminsFile(svc), text, &urls)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the admin URLs: %w", err)
	}
	return urls, nil
}

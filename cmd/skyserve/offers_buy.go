package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/provision"
)

func newOffersBuyCmd() *cobra.Command {
	var o blocksOptions
	cmd := &cobra.Command{
		Use:   "buy ID",
		Short: "Buy an EC2 Capacity Block",
		Long: `Buy an EC2 Capacity Block that 'skyserve offers blocks' found: repeat the flags of the
search with the id and the region of the block. The command shows the block and its upfront
price, and requires confirmation. AWS bills the price at once; a block cannot be cancelled,
changed or returned.

The block is not bought twice: a second run prints the reservation of the first. After the
purchase, add the printed lines to service.yaml. Machines are launched once the block starts.

Exit codes: 0 bought (now or earlier), 1 failed or declined, 2 usage error, 4 AWS rejects the
credentials.`,
		Example: `  skyserve offers buy cb-0123456789abcdef0 --type p5.48xlarge --count 2 --days 7 --region aws/us-east-2`,
		Args:    argsBetween(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runOffersBuy(cmd.Context(), &o, args[0], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.registerFlags(cmd.Flags())
	o.output.registerResult(cmd)
	cmd.Flags().BoolVar(&o.yes, "yes", false, "skip confirmation")
	return cmd
}

// boughtBlock is the output of `skyserve offers buy`.
type boughtBlock struct {
	Reservation provision.Reservation `json:"reservation"`
	// Bought is false for a block that an earlier run bought.
	Bought bool `json:"bought"`
	// PerHour is the upfront price by machine and hour, for regions[].reserved[].price; null if unknown.
	PerHour *float64 `json:"price_per_hour"`
}

func runOffersBuy(ctx context.Context, o *blocksOptions, id string, in io.Reader, out, errOut io.Writer) error {
	format, err := o.output.parse()
	if err != nil {
		return err
	}
	q, err := o.query()
	if err != nil {
		return err
	}
	regions, err := o.selectRegions()
	if err != nil {
		return err
	}
	if len(o.regions) != 1 {
		return usage(fmt.Errorf("--region must be given once, got %d", len(o.regions)), "'skyserve offers blocks' shows the region of a block")
	}
	market, err := o.market(ctx, regions)
	if err != nil {
		return cloudError(err)
	}
	found, rejected := searchBlocks(ctx, market, regions, q)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if rejected != nil {
		return cloudError(rejected)
	}
	at := slices.IndexFunc(found.Blocks, func(b blockRow) bool { return b.ID == id })
	if at < 0 && len(found.Warnings) > 0 {
		return fmt.Errorf("searching the block: %s", strings.Join(found.Warnings, "; "))
	}
	bought := boughtBlock{}
	if at >= 0 {
		if err := (outputFormat{kind: outputText}).write(errOut, nil, blockTable(found.Blocks[at:at+1])); err != nil {
			return err
		}
		fmt.Fprintf(errOut, "AWS bills %s at once. A block cannot be cancelled or returned.\n", found.Blocks[at].upfrontText())
		if !o.yes {
			if err := confirmAction(in, errOut, "bills "+found.Blocks[at].upfrontText()); err != nil {
				return err
			}
		}
		bought.PerHour = &found.Blocks[at].PerHour
		bought.Reservation, bought.Bought, err = market.BuyBlock(ctx, regions[0], id)
	} else {
		bought.Reservation, err = market.BoughtBlock(ctx, regions[0], id)
	}
	if err != nil {
		return buyError(err)
	}
	if format.isResult() {
		return format.writeResult(out, bought.Reservation.ID, bought)
	}
	return bought.print(out)
}

// buyError adds the next step to the error of a purchase.
func buyError(err error) error {
	var gone *provision.BlockGoneError
	if errors.As(err, &gone) {
		return failed(err, "search again: skyserve offers blocks; --type, --count, --days, --from and --to must be those of the search")
	}
	return cloudError(err)
}

// print prints the reservation and the lines for service.yaml.
func (b boughtBlock) print(w io.Writer) error {
	verb := "bought"
	if !b.Bought {
		verb = "bought earlier"
	}
	v := b.Reservation
	price := ""
	if b.PerHour != nil {
		price = ", price: " + strconv.FormatFloat(*b.PerHour, 'f', 4, 64)
	}
	_, err := fmt.Fprintf(w, `%s: %s, state %s, %s to %s
add to %s in service.yaml:
    reserved:
      - {id: %s, type: %s, count: %d%s}
`, verb, v.ID, v.State, v.Starts.UTC().Format(time.RFC3339), v.Ends.UTC().Format(time.RFC3339), v.Region, v.ID, v.Type, v.Total, price)
	return err
}

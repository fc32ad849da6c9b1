// Command skyserve serves large language models across regions and clouds.
// Each command has a small file of its own; the packages behind them hold the logic.
package main

import "os"

func main() { os.Exit(run(os.Args[1:])) }

/*
 * spank_qpu: the option --qpu=REQUEST of sbatch, salloc and srun.
 *
 * Copyright (C) the qtandem authors
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The plugin registers the option and does nothing else: no I/O, no lease. Slurm carries the value in
 * the job's own record (spank_job_env), where the submit hook in slurmctld reads it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/spank.h>

#define MAX_REQUEST 1024
/* How Slurm hands an option of a job on to its steps. A job script's own sbatch must not inherit it. */
#define INHERITED "SLURM_SPANK__SLURM_SPANK_OPTION_qpu_qpu"

SPANK_PLUGIN(qpu, 1);

static int take(int val, const char *optarg, int remote)
{
	size_t length = optarg ? strlen(optarg) : 0;

	(void) val;
	if (remote)
		return ESPANK_SUCCESS;
	if (length == 0 || length > MAX_REQUEST) {
		slurm_error("--qpu: name a QPU, for example --qpu=ibm_fez; the names: qtandem resources");
		return ESPANK_BAD_ARG;
	}
	return ESPANK_SUCCESS;
}

static struct spank_option qpu_option = {
	"qpu", "REQUEST",
	"QPUs of the job: name[:slots], a/b (one of), a+b (all of), any:key=value",
	1, 0, take
};

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	spank_context_t context = spank_context();

	(void) ac;
	(void) av;
	if (context == S_CTX_ALLOCATOR)
		unsetenv(INHERITED);
	if (context == S_CTX_ALLOCATOR || context == S_CTX_LOCAL || context == S_CTX_REMOTE)
		return spank_option_register(sp, &qpu_option) == ESPANK_SUCCESS ? 0 : -1;
	return 0;
}
